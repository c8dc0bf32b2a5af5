// A module so that the repository's does not have it. hack/policy/build.sh builds it with the modules of cluster/.
module github.com/coracle-project/coracle/hack/policy/clusternetworkpolicy

go 1.26.0
