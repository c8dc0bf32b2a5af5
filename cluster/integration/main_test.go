// Package integration uses a whole cluster, as `coracle up` starts it from the shipped binaries,
// the way programs do: through client-go and controller-runtime, unchanged.
//
// One cluster serves all tests of the package; each has a namespace of its own. Tests that kill the
// cluster process are not parallel, all others are, so that they run afterwards, together. All of
// it is in namespaces of its own, and nothing of it outlives the tests. It needs what `make
// integration` builds, in the directory that CORACLE_BIN names (bin, if it names none).
package integration

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/coracle-project/coracle/cluster/integration/isolate"
)

// boat is the cluster under test; its node is called so, too.
var boat *cluster

func TestMain(m *testing.M) {
	if ns := os.Getenv(operatorVar); ns != "" { // in a pod
		os.Exit(operate(ns))
	}
	if urls := os.Getenv(fetchVar); urls != "" { // in a pod
		os.Exit(fetchAll(strings.Fields(urls)))
	}
	os.Exit(isolate.Run(func() int { return withCluster(m) }))
}

func withCluster(m *testing.M) int {
	// What clients say while the server is away is not about the tests.
	klog.SetLogger(logr.Discard())
	log.SetLogger(logr.Discard())
	rest.SetDefaultWarningHandler(rest.NoWarnings{})

	var err error
	if boat, err = startCluster(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	// They wait more than they work. (The command line wins.)
	if err := flag.Set("test.parallel", "8"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if err := boat.forbidden(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if code != 0 {
		boat.showLogs()
	}
	if err := boat.stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}
