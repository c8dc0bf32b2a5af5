//go:build kubelet

package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/coracle-project/coracle/internal/testkit"
)

// kubeletCommands are those of scripts about static pods. In a script $BUSYBOX is an image, and
// $WORK a directory that pods can be given; files may use both. A pod is named by its manifest.
//
//	pod FILE              gives the kubelet a manifest
//	nopod FILE            takes it away, and waits until nothing of the pod is left
//	until POD PATH RE     waits until the kubelet's API shows at PATH of the pod's object what RE matches
//	crictl ARG...         prints what crictl does
//	expand FILE...        replaces the variables in files
//	ctr POD CONTAINER     prints the id of a pod's container, and sets $CTR
func (k *kubelet) commands() map[string]func(*testscript.TestScript, bool, []string) {
	return map[string]func(*testscript.TestScript, bool, []string){
		"pod": k.scriptPod, "nopod": k.scriptNoPod, "until": k.scriptUntil, "crictl": k.scriptCrictl, "ctr": k.scriptCtr,
		"expand": scriptExpand,
	}
}

// runKubeletScripts runs the scripts of a directory side by side, and returns when all have ended.
func runKubeletScripts(t *testing.T, k *kubelet, dir string, setup func(*testscript.Env) error) {
	t.Run(dir, func(t *testing.T) {
		testscript.Run(t, testscript.Params{
			Dir: filepath.Join("testdata", "kubelet", dir),
			Setup: func(env *testscript.Env) error {
				env.Setenv("BUSYBOX", testRef("busybox"))
				env.Setenv("PAUSE", testRef("pause"))
				env.Setenv("PATH", filepath.Dir(testkit.Bin(t, "tools", "kubectl"))+":"+os.Getenv("PATH"))
				if setup == nil {
					return nil
				}
				return setup(env)
			},
			Cmds: k.commands(),
		})
	})
}

// expand replaces a script's variables in a manifest.
func expand(ts *testscript.TestScript, file string) string {
	return os.Expand(ts.ReadFile(file), func(key string) string {
		switch key {
		case "BUSYBOX", "PAUSE", "WORK", "NS":
			return ts.Getenv(key)
		}
		return "$" + key
	})
}

func scriptExpand(ts *testscript.TestScript, neg bool, args []string) {
	if neg {
		ts.Fatalf("expand does not fail")
	}
	for _, file := range args {
		ts.Check(os.WriteFile(ts.MkAbs(file), []byte(expand(ts, file)), 0o600))
	}
}

func (k *kubelet) manifest(ts *testscript.TestScript, file string) string {
	return filepath.Join(k.manifests, filepath.Base(ts.Getenv("WORK"))+"-"+file)
}

func (k *kubelet) scriptPod(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: pod FILE")
	}
	// Renamed into place: the kubelet must not read half of it.
	tmp := filepath.Join(k.dir, filepath.Base(k.manifest(ts, args[0])))
	ts.Check(os.WriteFile(tmp, []byte(expand(ts, args[0])), 0o600))
	path := k.manifest(ts, args[0])
	ts.Check(os.Rename(tmp, path))
	ts.Defer(func() { _ = os.Remove(path) }) // if no one has taken it away
}

var manifestName = regexp.MustCompile(`(?m)^metadata: \{name: ([a-z0-9-]+)`)

func (k *kubelet) scriptNoPod(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: nopod FILE")
	}
	name := manifestName.FindStringSubmatch(ts.ReadFile(args[0]))
	if name == nil {
		ts.Fatalf("%s: no line \"metadata: {name: NAME\"", args[0])
	}
	ts.Check(os.Remove(k.manifest(ts, args[0])))
	ts.Check(k.until(func() error {
		pods, err := k.pods()
		if err != nil {
			return err
		}
		if _, there := pods[name[1]+"-"+kubeletNode]; there {
			return fmt.Errorf("pod %s is still there", name[1])
		}
		out, err := k.n.TryCrictl(nil, "ps", "-q", "--label", "io.kubernetes.pod.name="+name[1]+"-"+kubeletNode)
		if err == nil && out != "" {
			err = fmt.Errorf("containers of pod %s still run", name[1])
		}
		return err
	}))
}

func (k *kubelet) scriptUntil(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: until POD PATH REGEXP")
	}
	ts.Check(k.until(func() error { return k.shows(args[0], args[1], args[2]) }))
}

func (k *kubelet) scriptCrictl(ts *testscript.TestScript, neg bool, args []string) {
	out, err := k.n.TryCrictl(nil, args...)
	if (err != nil) != neg {
		ts.Fatalf("crictl %s: %v", strings.Join(args, " "), err)
	}
	fmt.Fprintln(ts.Stdout(), out)
}

func (k *kubelet) scriptCtr(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: ctr POD CONTAINER")
	}
	out, err := k.n.TryCrictl(nil, "ps", "-q", "--label", "io.kubernetes.pod.name="+args[0], "--label",
		"io.kubernetes.container.name="+args[1])
	ts.Check(err)
	if out == "" || strings.Contains(out, "\n") {
		ts.Fatalf("container %s of pod %s: %q", args[1], args[0], out)
	}
	ts.Setenv("CTR", out)
	fmt.Fprintln(ts.Stdout(), out)
}
