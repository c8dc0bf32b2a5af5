module github.com/coracle-project/coracle/internal/programpages

go 1.26.8

require golang.org/x/sys v0.47.0
