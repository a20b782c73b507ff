"""One module per API that agents speak: how a request reads and an answer is assembled."""
