"""What lets others in: each sin in a host's files is named, and the repaired twin has none."""

from __future__ import annotations

import pytest

from machine_fakes import FakeHost, healthy
from trainrig.doctor import Answer
from trainrig.machine.health import Listener, Protection
from trainrig.machine.snapshot import Missing
from trainrig.remote.audit import audit
from trainrig.remote.quick_tunnels import quick_tunnels
from trainrig.remote.tunnels import FrpRelay, cloudflared, frp_machine, frp_server

HOME = "/home/ada"
SSHD = "/etc/ssh/sshd_config"
KEYS = "PasswordAuthentication no\nPermitRootLogin prohibit-password\n"


def looked(files: dict[str, str], **more: dict[str, str]) -> dict[str, Answer]:
    found = audit(FakeHost(files, **more), HOME, healthy())
    return {each.check.id: each for each in found}


def ids(files: dict[str, str], **more: dict[str, str]) -> set[str]:
    return {one.id for each in looked(files, **more).values() for one in each.findings}


def frp(text: str) -> dict[str, str]:
    """The file of a frps that runs, in a folder of its own."""
    return {"/proc/77/cmdline": "/opt/bin/frps\0-c\0/srv/relay.toml", "/srv/relay.toml": text}


@pytest.mark.parametrize(
    "named", ["-c\0/srv/relay.toml", "-c=/srv/relay.toml", "--config=relay.toml"]
)
def test_a_relay_s_file_is_found_however_its_command_line_names_it(named: str) -> None:
    files = {
        "/proc/77/cmdline": f"/opt/bin/frps\0{named}\0",
        "/srv/relay.toml": 'auth.token = "x"\n',
    }
    host = FakeHost(files, links={"/proc/77/cwd": "/srv"})
    found = {one.id for each in audit(host, HOME, healthy()) for one in each.findings}
    assert "frp-no-tls" in found


SOUND_FRP = 'auth.token = "x"\ntransport.tls.force = true\n'
TUNNEL = cloudflared("x", "t", "gpu.example", 8888, "lab", "a" * 64).files["config.yml"]
YML = f"{HOME}/.cloudflared/config.yml"
# name: files with the fault, the repaired twin's, what is found
CASES = {
    "password": ({SSHD: "# defaults\n"}, {SSHD: KEYS}, {"ssh-password"}),
    "root": (
        {SSHD: "PermitRootLogin yes\nPasswordAuthentication yes\n"},
        {SSHD: KEYS},
        {"ssh-password", "ssh-root-password"},
    ),
    "empty": ({SSHD: KEYS + "PermitEmptyPasswords yes\n"}, {SSHD: KEYS}, {"ssh-empty-password"}),
    "gateway": ({SSHD: KEYS + "GatewayPorts yes\n"}, {SSHD: KEYS}, {"ssh-gateway-ports"}),
    "first value counts": (
        {SSHD: "PasswordAuthentication yes\nPasswordAuthentication no\n"},
        {SSHD: "PasswordAuthentication no\nPasswordAuthentication yes\n"},
        {"ssh-password"},
    ),
    "match": (
        {SSHD: "Match User x\n  PasswordAuthentication no\n"},
        {SSHD: KEYS + "Match User x\n  PasswordAuthentication yes\n"},
        {"ssh-password"},
    ),
    "included": (
        {
            SSHD: f"Include {SSHD}.d/*.conf\n{KEYS}",
            f"{SSHD}.d/50-cloud.conf": "PasswordAuthentication yes\n",
        },
        {SSHD: f"Include {SSHD}.d/*.conf\n", f"{SSHD}.d/10-keys-only.conf": KEYS},
        {"ssh-password"},
    ),
    "several patterns on a line, of digits": (
        {
            SSHD: f"Include /etc/none/*.conf {SSHD}.d/[0-9]*.conf\n{KEYS}",
            f"{SSHD}.d/5-cloud.conf": "PasswordAuthentication\tyes  # the cloud's\n",
        },
        {
            SSHD: f"Include {SSHD}.d/[0-9]*.conf\n{KEYS}",
            f"{SSHD}.d/x-cloud.conf": "PasswordAuthentication yes\n",
        },
        {"ssh-password"},
    ),
    "match all": (
        {SSHD: "Match User x\nPasswordAuthentication no\nMatch all\nPasswordAuthentication yes\n"},
        {SSHD: f"Match User x\nPasswordAuthentication yes\nMatch all\n{KEYS}"},
        {"ssh-password"},
    ),
    "equals": ({SSHD: "PasswordAuthentication = yes\n"}, {SSHD: KEYS}, {"ssh-password"}),
    "relative": (
        {SSHD: f'Include "sshd_config.d/*.conf"\n{KEYS}', f"{SSHD}.d/a.conf": "GatewayPorts yes"},
        {SSHD: f'Include "other.d/*.conf"\n{KEYS}', f"{SSHD}.d/a.conf": "GatewayPorts yes"},
        {"ssh-gateway-ports"},
    ),
    "dashboard": (
        frp(SOUND_FRP + 'webServer.addr = "0.0.0.0"\nwebServer.port = 7500\n'),
        frp(SOUND_FRP + "webServer.port = 7500\n"),
        {"frp-dashboard-open"},
    ),
    "token": (
        frp("transport.tls.force = true\n"),
        frp('transport.tls.force = true\nauth.tokenSource.type = "file"\n'),
        {"frp-no-token"},
    ),
    "empty token": (
        frp('transport.tls.force = true\nauth.token = ""\n'),
        frp(SOUND_FRP),
        {"frp-no-token"},
    ),
    "ini": (
        {"/etc/frp/frps.ini": "[common]\nbind_port = 7000\ndashboard_port = 7500\n"},
        {"/etc/frp/frps.ini": "[common]\ntoken = x\ntls_only = true\n"},
        {"frp-no-token", "frp-no-tls", "frp-dashboard-open"},
    ),
    "ini client": (
        {"/etc/frp/frpc.ini": "[common]\nserver_addr = r\n[ssh]\ntype = tcp\nlocal_port = 22\n"},
        {"/etc/frp/frpc.ini": "[common]\nserver_addr = r\n[ssh]\ntype = stcp\nsk = k\n"},
        {"frp-public-port"},
    ),
    "dashboard with a password": (
        frp(SOUND_FRP + 'webServer = { addr = "0.0.0.0", port = 7500, password = "p" }\n'),
        frp(SOUND_FRP + 'webServer = { addr = "127.0.0.1", port = 7500, password = "p" }\n'),
        {"frp-dashboard-open"},
    ),
    "quick tunnel": (
        {"/proc/9/cmdline": "/usr/bin/cloudflared\0tunnel\0--url\0http://localhost:8888\0"},
        {"/proc/9/cmdline": "/usr/bin/cloudflared\0--config\0c.yml\0tunnel\0run\0"},
        {"quick-tunnel"},
    ),
    "tls": (frp('auth.token = "x"\n'), frp(SOUND_FRP), {"frp-no-tls"}),
    "public port": (
        {"/etc/frp/frpc.toml": '[[proxies]]\nname = "j"\ntype = "tcp"\nlocalPort = 8888\n'},
        {"/etc/frp/frpc.toml": '[[proxies]]\nname = "j"\ntype = "stcp"\nsecretKey = "k"\n'},
        {"frp-public-port"},
    ),
    "policy": (
        {YML: TUNNEL.replace("required: true", "required: false")},
        {YML: TUNNEL},
        {"cloudflared-no-policy"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_sin_is_named_and_its_repaired_twin_is_clean(case: str) -> None:
    faulty, repaired, expected = CASES[case]
    assert ids(faulty) == expected
    assert ids(repaired) == set()


def test_every_finding_of_the_checks_has_a_case() -> None:
    known = {one for each in looked({}).values() for one in each.check.finds}
    ours = {name for name in known if name.startswith(("ssh-", "frp-", "cloudflared-", "quick"))}
    covered = {one for _, _, found in CASES.values() for one in found}
    assert ours - covered == {"frp-without-token"}  # doctor's, with its own fault


@pytest.mark.parametrize(
    ("line", "port"),
    [
        ("cloudflared tunnel --url=localhost:8501", 8501),
        ("/snap/bin/ngrok http 8888", 8888),
        ("/usr/bin/ngrok http --basic-auth=a:b 8888", None),
        ("lt --port 3000", 3000),
        ("bore local 5000 --to bore.pub", 5000),
        ("ssh -N -R 80:localhost:8888 serveo.net", 8888),
        ("ssh -N -R 2222:localhost:22 gate", 22),
        ("ssh -N -R 127.0.0.1:2222:127.0.0.1:22 gate", None),
        ("ssh -N -L 2222:localhost:22 gate", None),
        ("autossh -M 0 -fNR 0.0.0.0:80:localhost:8888 me@vps", 8888),
        ("ssh -o RemoteForward=9000:localhost:9001 vps", 9001),
        ("/tmp/.x/kworkerd tunnel --url http://127.0.0.1:7681", 7681),
        ("cloudflared tunnel --no-autoupdate run --token abc", 0),
        ("/usr/local/bin/ngrok start --all", 0),
        ("/usr/share/code/code tunnel --accept-server-license-terms", 0),
        ("code --no-sandbox", None),
        ("devtunnel host -p 8888", 8888),
        ("devtunnel host -p 8888 --allow-anonymous", 8888),
        ("zrok share public localhost:8501", 8501),
        ("chisel client http://relay:8080 R:8888:localhost:8889", 8889),
        ("chisel client http://relay:8080 8888:localhost:8889", None),
        ("chisel server --port 8080", None),
        ("rathole client.toml", 0),
        ("wstunnel client -R tcp://8080:localhost:9000 wss://relay", 9000),
        ("pagekite.py 8888 me.pagekite.me", 8888),
        ("playit", 0),
        ("cpolar http 8080", 8080),
        ("npc -server=1.2.3.4:8024 -vkey=x", 0),
        ("tmate -F", 0),
        ("upterm host --github-user ada -- bash", None),
        ("python train.py --url http://localhost:8080", None),
        ("/root/.cache/frpc_linux_amd64_v0.3 http -n x -l 7860 -i 127.0.0.1", 7860),
    ],
)
def test_an_address_that_asks_nobody_is_known_by_its_command_line(line: str, port) -> None:
    files = {"/proc/9/cmdline": line.replace(" ", "\0") + "\0"}
    found = looked(files)["quick-tunnels"].findings
    place = f"port {port} " if port else "a port "
    assert [place in finding.evidence for finding in found] == [True] * (port is not None)


def test_who_is_asked_at_the_other_end_decides_how_grave_a_tunnel_is() -> None:
    def severity(line: str) -> str:
        (found,) = looked({"/proc/9/cmdline": line.replace(" ", "\0")})["quick-tunnels"].findings
        return found.severity

    assert severity("ngrok http 8888") == "error"
    assert severity("devtunnel host -p 8888") == "warning"
    assert severity("devtunnel host -p 8888 --allow-anonymous") == "error"
    assert severity("ssh -R 80:localhost:8888 vps") == "warning"


def test_a_port_with_a_password_of_its_own_is_a_warning() -> None:
    def found(protection: Protection, service: str = "jupyter") -> tuple[str, str]:
        row = Listener(address="::", port=8888, program="x", service=service, protection=protection)
        (finding,) = quick_tunnels([["ngrok", "http", "8888"]], {8888: row})
        return finding.severity, finding.evidence

    assert found("token")[0] == found("password")[0] == "warning"
    assert found("none")[0] == "error"
    assert "behind it is jupyter, protection: token" in found("token")[1]
    assert "behind it" not in found("token", "")[1]


def test_findings_have_a_fix_a_risk_and_an_undo() -> None:
    (found,) = looked({SSHD: "x y\n"})["sshd"].findings
    assert "sshd_config.d/10-keys-only.conf" in found.fix and found.risk and found.undo


def test_root_s_sshd_says_what_it_resolves() -> None:
    files = {SSHD: "PasswordAuthentication yes\n"}
    assert ids(files, commands={"sshd -T": "passwordauthentication no\n"}) == set()
    assert ids({SSHD: KEYS}, commands={"sshd -T": "passwordauthentication yes\n"}) == {
        "ssh-password"
    }


def test_what_cannot_be_read_is_no_clean_answer() -> None:
    class Locked(FakeHost):
        def read(self, path: str) -> str | Missing:
            return Missing(f"{path}: permission denied") if path == SSHD else super().read(path)

    answers = {each.check.id: each for each in audit(Locked({}), HOME, healthy())}
    assert answers["sshd"].state == "not checkable" and "permission" in answers["sshd"].reason


def test_what_this_program_writes_is_clean(tmp_path) -> None:
    for name in ("token", "secret"):
        (tmp_path / name).write_text("x" * 40)
        (tmp_path / name).chmod(0o600)
    server = frp_server("r", tmp_path / "token", 7000).files["frps.toml"]
    relay = FrpRelay(server="h", port=7000, token_file=tmp_path / "token", ca=None)
    client = frp_machine("g", relay, tmp_path / "secret", 8888)
    assert ids({"/etc/frp/frps.toml": server}) == set()
    assert ids({"/etc/frp/frpc.toml": client.files["frpc.toml"]}) == set()


def test_hostile_files_are_no_traceback() -> None:
    for text in ("\0", "[" * 5000, "auth = 3\ntransport = []\nproxies = [1, {}]\n", "=\n"):
        for path in ("/etc/frp/frps.toml", SSHD, YML):
            looked({path: text})
