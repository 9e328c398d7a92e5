"""Read which programs listen on this machine, on which addresses, and with what protection.

Sockets are read from /proc/net/tcp and tcp6, their programs from /proc/PID/fd, which shows
other users' processes to root alone; command lines are open to all, so a service that is known by
its command line is matched by its port where its socket is not shown.  Protection is what the
command line and the service's configuration files say.  The secret itself is never passed on.

Sources: the kernel's Documentation/networking/proc_net_tcp.rst; Jupyter Server's "Security" page
(a token is made unless it is set to the empty text), frp's README ("Authenticating the Client"),
code-server's FAQ, Redis's "protected mode"; read in November 2026.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainrig.machine.health import Listener, Protection, Tunnel
from trainrig.machine.snapshot import Missing, value_or
from trainrig.machine.system_access import Host
from trainrig.safe_read import parse_toml
from trainrig.units import one_line

_LISTEN = "0A"
_MOST_PROCESSES = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Process:
    """A process: its number, command line and home folder."""

    pid: str
    words: tuple[str, ...]
    home: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Service:
    """A service that is known by its command line."""

    name: str
    pattern: re.Pattern[str]
    port: int


_SERVICES = tuple(
    _Service(name=name, pattern=re.compile(pattern), port=port)
    for name, pattern, port in (
        ("jupyter", r"(?:^|/)jupyter(?:-(?:lab|notebook|server))?(?:$| )", 8888),
        ("jupyter", r"-m (?:jupyter\S*|notebook)\b", 8888),
        ("code-server", r"(?:^|/)code-server(?:$| )", 8080),
        ("frps", r"(?:^|/)frps(?:$| )", 7000),
        ("tensorboard", r"(?:^|/)tensorboard(?:$| )|-m tensorboard\b", 6006),
        ("ray", r"ray/dashboard/dashboard\.py", 8265),
        ("docker", r"(?:^|/)dockerd(?:$| ).*tcp://", 2375),
        ("redis", r"(?:^|/)redis-server(?:$| )", 6379),
        ("mlflow", r"(?:^|/)mlflow (?:server|ui)\b", 5000),
        ("vllm", r"(?:^|/)vllm serve\b|vllm\.entrypoints", 8000),
        ("ollama", r"(?:^|/)ollama serve\b", 11434),
        ("ssh", r"(?:^|/)sshd(?:$|:| )", 22),
    )
)
_TUNNELS = (("frpc", r"(?:^|/)frpc(?:$| )"), ("ngrok", r"(?:^|/)ngrok (?:http|tcp|start)\b"))
_PORT = re.compile(r"--(?:\w+\.)?port(?:=| )(\d{1,5})\b|(?<=\s)-p (\d{1,5})\b")
_HOME = re.compile(r"^[^:]*:[^:]*:(\d+):[^:]*:[^:]*:([^:]*):", re.MULTILINE)


def listeners(host: Host) -> tuple[Listener, ...] | Missing:
    """Return every TCP port that something waits on, lowest first."""
    sockets = _sockets(host)
    if isinstance(sockets, Missing):
        return sockets
    processes = _processes(host)
    owners = _owners(host, processes, {inode for _, _, inode in sockets})
    by_socket: dict[tuple[str, int], Listener] = {}
    for address, port, inode in sockets:
        process = owners.get(inode)
        service = _service_in(" ".join(process.words)) if process else None
        if process is None or "docker-proxy" in process.words[0]:
            process, service = _by_port(processes, port)
        by_socket[address, port] = Listener(
            address=address,
            port=port,
            program=_program(process),
            service=service.name if service else "",
            protection=_protection(host, service.name, process)
            if service and process
            else "unknown",
        )
    return tuple(sorted(by_socket.values(), key=lambda listener: (listener.port, listener.address)))


def tunnels(host: Host) -> tuple[Tunnel, ...] | Missing:
    """Return the clients that make local ports reachable from elsewhere."""
    if isinstance(host.names("/proc"), Missing):
        return Missing("/proc cannot be read")
    tunnels_listed = []
    for process in _processes(host):
        line = " ".join(process.words)
        for name, pattern in _TUNNELS:
            if re.search(pattern, line):
                tunnels_listed.append(_tunnel(host, name, process))
                break
    return tuple(tunnels_listed)


def _sockets(host: Host) -> list[tuple[str, int, str]] | Missing:
    """Return address, port and inode of each listening socket."""
    tables = [host.read(f"/proc/net/{name}") for name in ("tcp", "tcp6")]
    if isinstance(tables[0], Missing):
        return tables[0]
    sockets = []
    for line in "\n".join(value_or(table, "") for table in tables).splitlines():
        words = line.split()
        if len(words) > 9 and words[3] == _LISTEN:
            address, _, port = words[1].partition(":")
            shown = _address(address)
            if shown is not None and re.fullmatch(r"[0-9A-Fa-f]{4}", port):
                sockets.append((shown, int(port, 16), words[9]))
    return sockets


def _address(digits: str) -> str | None:
    """Read ``0100007F`` as 127.0.0.1: words of four bytes, each in the processor's order."""
    if not re.fullmatch(r"(?:[0-9A-Fa-f]{8}){1,4}", digits):
        return None
    data = b"".join(
        bytes.fromhex(digits[place : place + 8])[::-1] for place in range(0, len(digits), 8)
    )
    if len(data) == 16:
        six = ipaddress.IPv6Address(data)
        return str(six.ipv4_mapped or six)
    return str(ipaddress.IPv4Address(data)) if len(data) == 4 else None


def _processes(host: Host) -> list[_Process]:
    homes = dict(_HOME.findall(value_or(host.read("/etc/passwd"), "")))
    pids = [name for name in value_or(host.names("/proc"), ()) if name.isdecimal()]
    processes = []
    for pid in pids[:_MOST_PROCESSES]:
        line = host.read(f"/proc/{pid}/cmdline")
        if isinstance(line, Missing) or not line.strip("\0"):
            continue
        words = tuple(line.strip("\0").split("\0"))
        home = ""
        if _service_in(" ".join(words)) or "frpc" in line:
            status = value_or(host.read(f"/proc/{pid}/status"), "")
            user = re.search(r"^Uid:\s+(\d+)", status, re.MULTILINE)
            home = homes.get(user[1], "") if user else ""
        processes.append(_Process(pid=pid, words=words, home=home))
    return processes


def _owners(host: Host, processes: Iterable[_Process], wanted: set[str]) -> Mapping[str, _Process]:
    """Return the process of each socket, as far as this user may see them."""
    unassigned, owners = set(wanted), {}
    for process in processes:
        if not unassigned:
            break
        folder = f"/proc/{process.pid}/fd"
        for number in value_or(host.names(folder), ()):
            match = re.fullmatch(
                r"socket:\[(\d+)\]", value_or(host.link_text(f"{folder}/{number}"), "")
            )
            if match and match[1] in unassigned:
                owners[match[1]] = process
                unassigned.discard(match[1])
    return owners


def _service_in(line: str) -> _Service | None:
    return next((service for service in _SERVICES if service.pattern.search(line)), None)


def _by_port(processes: list[_Process], port: int) -> tuple[_Process | None, _Service | None]:
    """Return the service whose command line names this port, or whose usual port it is."""
    for process in processes:
        line = " ".join(process.words)
        service = _service_in(line)
        if service is None:
            continue
        named = _PORT.search(line)
        if port == (int(named[1] or named[2]) if named else service.port):
            return process, service
    return None, None


def _program(process: _Process | None) -> str | Missing:
    if process is None:
        return Missing("another user's process; root sees it")
    name = process.words[0].split(" ")[0].rpartition("/")[2]
    if name.startswith("python") and len(process.words) > 1:
        script = (
            process.words[2] if process.words[1] == "-m" and process.words[2:] else process.words[1]
        )
        name = f"{name} {script.rpartition('/')[2]}"
    return one_line(name)[:60]


# ---- protection, by service


def _protection(host: Host, name: str, process: _Process) -> Protection:
    judge = _PROTECTIONS.get(name)
    return judge(host, process) if judge else _FIXED.get(name, "unknown")


def _by_option(option: str, kind: Protection) -> Callable[[Host, _Process], Protection]:
    """Return the protection of a program that an option in its command line protects."""
    return lambda _, process: kind if option in " ".join(process.words) else "none"


def _code_server(host: Host, process: _Process) -> Protection:
    text = value_or(host.read(f"{process.home}/.config/code-server/config.yaml"), "")
    bare = re.search(r"--auth[ =]none\b", " ".join(process.words))
    return "none" if bare or re.search(r"^auth:\s*none", text, re.MULTILINE) else "password"


def _frps(host: Host, process: _Process) -> Protection:
    config = _frp_config(host, process)
    if isinstance(config, Missing):
        return "unknown"
    return "token" if _has_token(config) else "none"


_JUPYTER_SECRET = re.compile(
    r"(?:ServerApp|NotebookApp|LabApp|IdentityProvider|PasswordIdentityProvider)"
    r"\.(token|password|hashed_password)\s*=\s*(?:[bu]?(['\"])(.*?)\2|(\S*))"
)


def _jupyter(host: Host, process: _Process) -> Protection:
    """Return Jupyter's protection: it makes a token unless an empty one is set."""
    secrets: dict[str, str] = {}
    folders = ("/usr/local/etc/jupyter", "/etc/jupyter", f"{process.home}/.jupyter")
    kinds = ("notebook", "server", "lab")
    paths = [f"{folder}/jupyter_{kind}_config" for folder in folders for kind in kinds]
    paths += [
        word.partition("=")[2].removesuffix(".py").removesuffix(".json")
        for word in process.words
        if word.startswith("--config=/")
    ]
    for path in paths:
        text = value_or(host.read(f"{path}.py"), "")
        lines = [option for option in text.splitlines() if not option.lstrip().startswith("#")]
        secrets |= _secrets_in("\n".join(lines))
        secrets |= _secrets_in_json(host.read(f"{path}.json"))
    for word in process.words:
        secrets |= _secrets_in(word)
    if secrets.get("password"):
        return "password"
    return "none" if secrets.get("token") == "" else "token"


def _secrets_in(text: str) -> dict[str, str]:
    secrets = {}
    for name, _, quoted, bare in _JUPYTER_SECRET.findall(text):
        value = (quoted or bare).strip("'\"")
        secrets["token" if name == "token" else "password"] = value
    return secrets


def _secrets_in_json(content: str | Missing) -> dict[str, str]:
    try:
        whole = json.loads(value_or(content, "{}"))
    except (ValueError, RecursionError):
        return {}
    secrets = {}
    for section in whole.values() if isinstance(whole, dict) else ():
        for name, value in section.items() if isinstance(section, dict) else ():
            if name in ("token", "password", "hashed_password") and isinstance(value, str):
                secrets["token" if name == "token" else "password"] = value
    return secrets


def _redis(host: Host, process: _Process) -> Protection:
    text = " ".join(process.words)
    for word in process.words[1:]:
        if word.endswith(".conf"):
            text += "\n" + value_or(host.read(word), "")
    if re.search(r"^\s*requirepass\s+\S", text, re.MULTILINE) or "--requirepass" in text:
        return "password"
    # Protected mode, the default, answers other machines with an error.
    return "none" if re.search(r"protected-mode[ \"']+no\b", text) else "unknown"


_PROTECTIONS: dict[str, Callable[[Host, _Process], Protection]] = {
    "jupyter": _jupyter,
    "code-server": _code_server,
    "frps": _frps,
    "redis": _redis,
    "docker": _by_option("--tlsverify", "token"),
    "vllm": _by_option("--api-key", "token"),
    "mlflow": _by_option("--app-name", "password"),
}
# What is always so: sshd asks, the others have no login of their own.
_FIXED: dict[str, Protection] = {
    "ssh": "password",
    **dict.fromkeys(("tensorboard", "ray", "ollama"), "none"),
}


def _frp_config(host: Host, process: _Process) -> Mapping[str, Any] | Missing:
    """Read frp's configuration: TOML or JSON, or the INI of versions before 0.52."""
    line = {"arguments": " ".join(process.words)}
    path = frp_file(host, process.pid, process.words, process.home)
    if not path:
        return line
    text = host.read(path)
    if isinstance(text, Missing):
        return text
    for read in (parse_toml, json.loads):
        try:
            parsed = read(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(parsed, dict):
            return {**line, **parsed}
    return {**line, "text": text}


def frp_file(host: Host, pid: str, words: Sequence[str], home: str) -> str:
    """Return the configuration file that frp's command line names; empty where it names none."""
    path = ""
    for place, word in enumerate(words):
        if word in ("-c", "--config") and words[place + 1 :]:
            path = words[place + 1]
        elif word.startswith(("-c=", "--config=")):
            path = word.partition("=")[2]
    if not path or path.startswith("/"):
        return path
    return f"{value_or(host.link_text(f'/proc/{pid}/cwd'), home)}/{path}"


def _has_token(config: Mapping[str, Any] | Missing) -> bool:
    if isinstance(config, Missing):
        return False
    auth = config.get("auth")
    if isinstance(auth, Mapping) and (
        auth.get("token") or auth.get("oidc") or auth.get("tokenSource")
    ):
        return True
    common = config.get("common")
    if config.get("auth.token") or (isinstance(common, Mapping) and common.get("token")):
        return True
    if re.search(r"(?:-t|--token)(?:=| )\S", str(config.get("arguments", ""))):
        return True
    text = str(config.get("text", ""))
    return re.search(r"^\s*(?:auth\.)?token\s*[=:]\s*\S", text, re.MULTILINE) is not None


def _tunnel(host: Host, name: str, process: _Process) -> Tunnel:
    if name != "frpc":
        ports = re.findall(r"\b(\d{2,5})\b", " ".join(process.words[1:]))
        known = Missing("its configuration is its own")
        return Tunnel(service=name, local_ports=tuple(map(int, ports)), authenticated=known)
    config = _frp_config(host, process)
    if isinstance(config, Missing):
        return Tunnel(service=name, local_ports=(), authenticated=config)
    proxies = config.get("proxies")
    listed = proxies if isinstance(proxies, list) else []
    ports = [str(table.get("localPort")) for table in listed if isinstance(table, dict)]
    text = str(config.get("text", "")) + str(config.get("arguments", ""))
    ports += re.findall(
        r"(?:local_port\s*=\s*|localPort:\s*|-l |--local[-_]port[= ])(\d{1,5})", text
    )
    tables = [table for table in config.values() if isinstance(table, dict)]
    ports += [str(table["local_port"]) for table in tables if "local_port" in table]
    numbers = sorted({int(port) for port in ports if port.isdecimal()})
    return Tunnel(service=name, local_ports=tuple(numbers), authenticated=_has_token(config))


_SECRETS = (
    *(".netrc", ".git-credentials", ".config/git/credentials", ".pypirc", ".npmrc", ".pgpass"),
    *(".ssh/id_rsa", ".ssh/id_ed25519", ".ssh/id_ecdsa", ".ssh/id_dsa", ".vault-token"),
    *(".aws/credentials", ".azure/msal_token_cache.json", ".s3cfg", ".config/rclone/rclone.conf"),
    ".config/gcloud/application_default_credentials.json",
    *(".docker/config.json", ".config/containers/auth.json", ".kube/config"),
    *(".cache/huggingface/token", ".cache/huggingface/stored_tokens", ".huggingface/token"),
    *(".kaggle/kaggle.json", ".config/kaggle/kaggle.json", ".config/gh/hosts.yml"),
    *(".jupyter/jupyter_server_config.json", ".jupyter/jupyter_server_config.py"),
    *(".config/frp/frpc.toml", ".config/frp/frps.toml"),
    *(".ngrok2/ngrok.yml", ".config/ngrok/ngrok.yml", ".cloudflared/cert.pem"),
)
"""Files of a home that hold a secret."""
_SECRET_FOLDERS = ((".cloudflared", ".json"),)
"""Folders of a home, and how those of their files end that hold a secret."""
_GROUP = re.compile(r"^([^:]*):[^:]*:(\d+):([^:]*)$", re.MULTILINE)


def _own_group(host: Host, home: str) -> bool:
    """Return whether the user's group is a private one, without other members."""
    for line in value_or(host.read("/etc/passwd"), "").splitlines():
        words = line.split(":")
        if len(words) > 5 and words[5] == home:
            groups = _GROUP.findall(value_or(host.read("/etc/group"), ""))
            return any(
                name == words[0] and number == words[3] and members in ("", words[0])
                for name, number, members in groups
            )
    return False


_SECRET_WORDS = re.compile(
    r"password|token|\bkey|hf_|PRIVATE KEY|secret|credential|auth(?!s\"\s*:\s*\{\s*\})"
    r"|://[^/\s:@]+:[^@\s]+@|^hvs\.|^[^:#\s]+:[\d*]+:[^:]*:[^:]*:\S",
    re.IGNORECASE | re.MULTILINE,
)
"""Words of a secret; a user and password in an address, Vault's token, a line of .pgpass."""


def readable_secrets(host: Host) -> tuple[str, ...] | Missing:
    """Return files in this user's home that hold a secret and that others may read.

    They must get there, too: a home that is closed to them guards its files.
    """
    home = host.environment.get("HOME", "")
    if not home:
        return Missing("HOME is not set")
    readable = []
    others = 0o004 if _own_group(host, home) else 0o044
    listed = [
        f"{folder}/{name}"
        for folder, ending in _SECRET_FOLDERS
        for name in value_or(host.names(f"{home}/{folder}"), ())
        if name.endswith(ending)
    ]
    for name in (*_SECRETS, *listed):
        mode, folder, way = host.mode(f"{home}/{name}"), home, others
        for part in ("", *name.split("/")[:-1]):
            folder = f"{folder}/{part}" if part else folder
            way &= value_or(host.mode(folder), others >> 2) << 2
        if isinstance(mode, int) and mode & way:
            content = host.read(f"{home}/{name}")
            if isinstance(content, str) and _SECRET_WORDS.search(content):
                readable.append(f"~/{name}")
    return tuple(readable)
