"""Between text and token ids: templates, streaming detokenisation, stop strings, parsed replies, splicing."""
