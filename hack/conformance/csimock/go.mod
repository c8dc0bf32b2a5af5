// A module so that the repository's does not have it. hack/conformance/csimock.sh builds it with the modules of cluster/.
module github.com/coracle-project/coracle/hack/conformance/csimock

go 1.26.0
