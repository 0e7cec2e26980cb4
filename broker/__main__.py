"""`python -m broker --config FILE [--override key=value]...`: one broker in the foreground. `--version` prints its form."""

import sys

from broker import compiled

form = compiled.use()  # before the import of everything else
if sys.argv[1:] == ["--version"]:
    print(form)
    sys.exit()

from broker.main import main  # noqa: E402

main(form=form)
