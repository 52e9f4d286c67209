"""`polyhead explore`: a web page on which to look at the heads of a served encoder."""
