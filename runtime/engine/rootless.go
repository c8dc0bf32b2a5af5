package engine

import (
	"fmt"
	"os"
	"slices"

	"github.com/moby/sys/userns"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/runtime"
)

// rootless says whether this process is an ordinary user's, or in a user namespace: it may not
// copy the host's mounts, whatever its user id. Containers that it makes take what they need of
// the host by themselves (plan.Options.Gather), in their own user namespace or in this one.
func rootless() bool { return os.Geteuid() != 0 || userns.RunningInUserNS() }

// needsUserNamespace refuses what an ordinary user cannot have.
func needsUserNamespace(spec *specs.Spec) error {
	is := func(n specs.LinuxNamespace) bool { return n.Type == specs.UserNamespace }
	if os.Geteuid() == 0 || spec.Linux != nil && slices.ContainsFunc(spec.Linux.Namespaces, is) {
		return nil
	}
	return fmt.Errorf(
		"%w: a container of a user other than root needs a user namespace: add a user namespace to linux.namespaces, with mappings "+
			"(coracle-oci spec --rootless writes such a configuration)", runtime.ErrInvalidSpec,
	)
}
