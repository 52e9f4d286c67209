"""`make engines`: one encoder on several engines and in several precisions, over the wire and in process."""
