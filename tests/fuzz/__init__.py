"""Fuzzing of every decoder that takes bytes from outside: `make fuzz MINUTES=10`, `make fuzz MINUTES=2 DECODER=batch`.

decoder.py    what a decoder is here: how it is called, what it may raise, where its inputs begin
decoders/     all of them, by where their bytes come from
harm.py       does an input do harm: another exception, a wrong result, too much time or memory
worker.py     one decoder under atheris, until its time is over
run.py        `make fuzz`: a worker for each decoder, on all cores, and what they found
corpus.py     the inputs that are kept: packed, made small
corpus/       one file for each decoder
test_corpus.py    replays them, in `make test`
"""
