"""`python -m broker --config FILE [--override key=value]...`: one broker in the foreground."""

from broker.main import main

main()
