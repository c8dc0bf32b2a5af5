package main

import (
	"fmt"

	kubeversion "k8s.io/apimachinery/pkg/util/version"
)

// checkRelease refuses a cluster whose Coracle is older than this program, own: its control plane
// may not know what a newer node needs of it. The patch release does not count. A build between
// releases counts as the one before it, and one that names no release is not compared.
func checkRelease(own, cluster string) error {
	mine, err := kubeversion.ParseGeneric(own)
	if err != nil {
		return nil
	}
	theirs, err := kubeversion.ParseGeneric(cluster)
	if err != nil || !theirs.WithPatch(0).LessThan(mine.WithPatch(0)) {
		return nil
	}
	return fmt.Errorf("this machine has Coracle %s, newer than the cluster's %s: upgrade the control plane first, or install its release "+
		"here", mine, theirs)
}
