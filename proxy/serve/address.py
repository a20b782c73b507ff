"""Where the proxy listens, and how other commands find it: `proxy.json` in the log folder."""

from __future__ import annotations

import errno
import json
import os
import socket

from gyre.proxy.errors import ConfigError
from gyre.proxy.log.folder import Folder
from gyre.proxy.process import born

BACKLOG = 4096
SCHEMA = 1
_WHY = {
    errno.EADDRINUSE: ("another process listens there", "choose another `--port`, or 0 for a free one"),
    errno.EACCES: ("this user may not listen there", "choose a `--port` above 1023"),
    errno.EADDRNOTAVAIL: ("this machine has no such address", "`--host` must be an address of this machine"),
}


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one.

    Raises:
        ConfigError: the address cannot be used; names it.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except UnicodeError as error:
        raise ConfigError(f"`{host}` is not a host name") from error
    except OSError as error:
        why, hint = _WHY.get(error.errno or 0, (error.strerror or str(error), ""))
        raise ConfigError(f"cannot listen on `{host}:{port}`: {why}", hint) from error


def url_of(listener: socket.socket) -> str:
    """How a client on this machine reaches it."""
    host, port = listener.getsockname()[:2]
    near = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{near}]:{port}" if ":" in near else f"http://{near}:{port}"


def announce(folder: Folder, url: str) -> None:
    """Write where this process listens, at once and whole."""
    pid = os.getpid()
    told = {"schema": SCHEMA, "url": url, "pid": pid, "born": born(pid)}
    temporary = folder.root / f".proxy.json.{pid}"
    temporary.write_text(json.dumps(told) + "\n")
    temporary.replace(folder.proxy_file)


def withdraw(folder: Folder) -> None:
    """Take the file away again, unless a later proxy has put its own there."""
    try:
        ours = json.loads(folder.proxy_file.read_bytes())["pid"] == os.getpid()
    except (OSError, ValueError, KeyError, TypeError):
        # Gone, or not as we wrote it: then it is not ours to remove.
        return
    if ours:
        folder.proxy_file.unlink(missing_ok=True)
