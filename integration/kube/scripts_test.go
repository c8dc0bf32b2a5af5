package kube

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestKubectl runs testdata: kubectl as its users use it. In a script kubectl acts in $NS, a
// namespace made for it and deleted after it; $IMAGE and $BUSYBOX are images that can be pulled;
// files may use all of them with envsubst FILE....
func TestKubectl(t *testing.T) {
	c := newCluster(t)
	// Scripts of one directory run at the same time, and have ended before the next. What is done
	// to the node is felt by all pods.
	for _, dir := range []string{"namespaced", "node"} {
		t.Run(dir, func(t *testing.T) {
			testscript.Run(t, testscript.Params{
				Dir:   filepath.Join("testdata", dir),
				Setup: c.namespace,
				Cmds:  map[string]func(*testscript.TestScript, bool, []string){"envsubst": envsubst},
			})
		})
	}
}

// namespace gives a script its namespace and a kubeconfig that acts there.
func (c *cluster) namespace(env *testscript.Env) error {
	name := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(filepath.Base(env.WorkDir), "script-"), "_", "-"))
	data, err := os.ReadFile(c.kubeconfig())
	if err != nil {
		return err
	}
	config := filepath.Join(env.WorkDir, ".kubeconfig")
	if err := os.WriteFile(config, data, 0o600); err != nil {
		return err
	}
	env.Setenv("NS", name)
	env.Setenv("HOME", env.WorkDir)
	env.Setenv("KUBECONFIG", config)
	env.Setenv("IMAGE", registry.Addr+"/demo/web:1")
	env.Setenv("BUSYBOX", registry.Addr+"/demo/busybox:1")
	env.Setenv("PATH", filepath.Dir(c.kubectl)+":"+filepath.Dir(c.coracle)+":"+os.Getenv("PATH"))
	env.Setenv("TERM", "dumb")
	for _, args := range [][]string{
		{"create", "namespace", name},
		{"config", "set-context", "--current", "--namespace", name, "--kubeconfig", config},
		// Pods are refused without it, and it is made behind the namespace's back.
		{"wait", "serviceaccount/default", "--namespace", name, "--for=create", "--timeout", patience.String()},
	} {
		if out, err := c.tryKube("", args...); err != nil {
			return &exec.Error{Name: "kubectl " + strings.Join(args, " ") + ": " + out, Err: err}
		}
	}
	env.Defer(func() { _, _ = c.tryKube("", "delete", "namespace", name, "--wait=false") })
	return nil
}

// envsubst replaces $NS, $IMAGE and $BUSYBOX in files.
func envsubst(ts *testscript.TestScript, neg bool, files []string) {
	if neg {
		ts.Fatalf("envsubst does not fail")
	}
	for _, name := range files {
		text := os.Expand(ts.ReadFile(name), func(key string) string {
			switch key {
			case "NS", "IMAGE", "BUSYBOX":
				return ts.Getenv(key)
			}
			return "$" + key
		})
		ts.Check(os.WriteFile(ts.MkAbs(name), []byte(text), 0o644))
	}
}
