"""The verb ``hello``: says that the package is found."""

import click


@click.command()
def command() -> None:
    """Say hello."""
    click.echo("hello from trainrig-example")
