"""JupyterLab on loopback with its token: reached through a forward, and no other way.

The token is made here and lies in a file that its owner alone may read.  The server's own process
reads it there: on a command line every user of the machine would see it, and in the environment an
empty ``c.IdentityProvider.token`` of the user's own settings would win over it.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from trainrig.errors import UnavailableError, UsageError
from trainrig.process.python_env import missing_requirement
from trainrig.remote.setups import Setup, setups_folder
from trainrig.remote.tunnels import port_pair

_START = (
    "import runpy, sys; "
    "token = open(sys.argv[1]).read().strip(); "
    "names = ('IdentityProvider', 'PasswordIdentityProvider'); "
    "sys.argv[1:] = [*sys.argv[2:], *(f'--{name}.token={token}' for name in names)]; "
    "runpy.run_module('jupyterlab', run_name='__main__', alter_sys=True)"
)


def notebook(name: str, python: str, port: int, root: Path) -> tuple[Setup, str]:
    """Return the set-up of a notebook server, and its token.

    ``root``: the folder that it shows.  Raises UnavailableError without JupyterLab,
    UsageError where the folder or the port is none.
    """
    port = port_pair(str(port))[0]
    if not root.expanduser().is_dir():
        raise UsageError(f"{root} is no folder", "--root FOLDER, which the notebook shows")
    if (missing := missing_requirement(python, {"jupyterlab": "4"})) is not None:
        raise UnavailableError(missing, f"{python} -m pip install jupyterlab")
    token = secrets.token_urlsafe(32)
    user = os.environ.get("USER") or os.environ.get("LOGNAME") or "USER"
    server = (
        *("--no-browser", "--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}"),
        *("--ServerApp.port_retries=0", "--ServerApp.allow_remote_access=False"),
        "--ServerApp.allow_origin=",
        f"--ServerApp.root_dir={root.expanduser().resolve()}",
        *(["--allow-root"] if os.getuid() == 0 else []),
    )
    saved = setups_folder() / name / "token"
    setup = Setup(
        name=name,
        kind="notebook",
        command=(python, "-c", _START, "FOLDER/token", *server),
        files={"token": token + "\n"},
        reach=f"ssh -N -L {port}:127.0.0.1:{port} {user}@{os.uname().nodename}",
        notes=(
            f"there: http://127.0.0.1:{port}/lab with the token in {saved}",
            f"supervised, from there: trainrig remote forward {os.uname().nodename} --port {port}",
        ),
    )
    return setup, token
