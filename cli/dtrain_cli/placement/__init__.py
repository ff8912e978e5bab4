"""The tasks of a run laid on hosts: rules alone, which neither connect nor look anything up."""
