"""`polyhead explore`: a web page on which to look at attention heads."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number

from polyhead_client.options import DEFAULT_CONNECTION, ConnectionOptions

app = App(name="explore")


@app.default
def explore(
    *,
    connection: ConnectionOptions = DEFAULT_CONNECTION,
    host: str = "127.0.0.1",
    port: Annotated[int, Parameter(validator=Number(gte=0, lt=65_536))] = 8003,
    allow_host: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    input: Path | None = None,
    memory: Path | None = None,
    open_page: Annotated[bool, Parameter(name="--open", negative="")] = False,
) -> None:
    """Serve a web page on which to look at the heads of a served encoder.

    ```sh
    polyhead explore --open
    ```

    Parameters
    ----------
    connection
        The server, and the family to show first.
    host
        The address to listen on. The page does not authenticate: whoever reaches it calls the server as
        you.
    port
        The port; 0 picks a free one.
    allow_host
        A further host name by which browsers may call the page; those of loopback always may.
    input
        What to show in families that take no texts: an .npy file of vectors [T, D] or token ids [T]. Default:
        made-up vectors.
    memory
        An .npy file of the vectors that these attend to, [S, D], in families with cross-attention.
    open_page
        Open the page in the browser.
    """
    import socket
    import sys
    import webbrowser

    import uvicorn

    from polyhead_client import AsyncClient
    from polyhead_view.explorer.app import LOOPBACK, configuration, create_page
    from polyhead_view.explorer.explorer import Explorer
    from polyhead_view.inputs import SequenceFiles

    credentials, token = connection.credentials(), connection.token()

    def connect() -> AsyncClient:
        return AsyncClient(
            connection.address, timeout=connection.timeout, credentials=credentials, token=token
        )

    files = SequenceFiles(input=input, memory=memory)
    files.arrays  # noqa: B018  # what is wrong with a file is said before the page is served
    explorer = Explorer(connect, address=connection.address, model=connection.model, files=files)
    page = create_page(explorer, allowed_hosts=(*LOOPBACK, *allow_host))
    family, shown = (socket.AF_INET6, f"[{host}]") if ":" in host else (socket.AF_INET, host)
    with socket.create_server((host, port), family=family) as listening:
        url = f"http://{shown}:{listening.getsockname()[1]}/"
        sys.stdout.write(f"The explorer of {connection.address} is at {url}\n")
        sys.stdout.flush()
        if shown not in LOOPBACK:
            sys.stderr.write(
                f"warning: {host} is beyond loopback, and the page does not authenticate anyone\n"
            )
        if open_page:
            webbrowser.open(url)
        uvicorn.Server(configuration(page)).run(sockets=[listening])
