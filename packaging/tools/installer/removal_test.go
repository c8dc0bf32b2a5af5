// Package installer tests packaging/install.sh.
package installer

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A removal ends cluster and pods unless they are those of programs in another directory: the
// directories of both are the same.
func TestRemoval(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("only root can make namespaces")
	}
	script, err := filepath.Abs("../../install.sh")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		running string // programs that run
		inside  string // a program that runs with another root
		prefix  string // a link to the prefix, "" for the prefix itself
		unit    string // what systemd's unit of coracled is, "" without systemd
		user    string // of the removal, "" for root
		asked   string
		said    string
		fails   bool
	}{
		{name: "nothing runs", asked: "coracle down\ncoracled purge --stopped\n"},
		{name: "its own coracled runs", running: "PREFIX/bin/coracled", asked: "coracle down\ncoracled purge --stopped\n"},
		{name: "another coracled runs", running: "OTHER/bin/coracled", said: "Coracle of another directory runs"},
		{name: "only another shim runs", running: "OTHER/bin/containerd-shim-coracle-v1", said: "Coracle of another directory runs"},
		{name: "a foreign shim runs", running: "OTHER/bin/containerd-shim-runc-v2", asked: "coracle down\ncoracled purge --stopped\n"},
		{
			name: "the stopped unit of another directory, whose pods run", running: "OTHER/bin/containerd-shim-coracle-v1",
			unit: "OTHER/lib/systemd/system/coracled.service", said: "Coracle of another directory runs",
		},
		{
			name: "its own unit", running: "PREFIX/bin/coracled", unit: "PREFIX/lib/systemd/system/coracled.service",
			asked: "systemctl disable --now coracle.service\ncoracle down\nsystemctl disable --now coracled.service\ncoracled purge --stopped\n",
		},
		{
			name: "its own unit has hidden the one of another coracled, which runs", running: "OTHER/bin/coracled",
			unit: "PREFIX/lib/systemd/system/coracled.service", said: "Coracle of another directory runs",
		},
		{
			name: "another program of the directory, and another shim", running: "PREFIX/bin/node OTHER/bin/containerd-shim-coracle-v1",
			said: "Coracle of another directory runs",
		},
		{
			name: "a container's program of the same path, and another shim", inside: "PREFIX/bin/coracled",
			running: "OTHER/bin/containerd-shim-coracle-v1", said: "Coracle of another directory runs",
		},
		{name: "a prefix that is a link", prefix: "link", running: "PREFIX/bin/coracled", asked: "coracle down\ncoracled purge --stopped\n"},
		{name: "a user", user: "nobody"},
		{name: "a user, and root runs coracled", running: "PREFIX/bin/coracled", user: "nobody", said: "only root can tell whose", fails: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "removal-") // which the user may enter
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			prefix, other, asked := filepath.Join(dir, "prefix"), filepath.Join(dir, "other"), filepath.Join(dir, "asked")
			here := strings.NewReplacer("PREFIX", prefix, "OTHER", other).Replace
			says := "#!/bin/sh\necho \"${0##*/} $*\" >>" + asked + "\n"
			for path, text := range map[string]string{
				prefix + "/bin/coracle": says, prefix + "/bin/coracled": says,
				prefix + "/lib/systemd/system/coracle.service":  "",
				prefix + "/lib/systemd/system/coracled.service": "",
				prefix + "/share/doc/coracle/installed":         "bin/coracle\nbin/coracled\n",
				dir + "/path/systemctl": "#!/bin/sh\ncase $* in *FragmentPath*) echo \"$UNIT\" ;; *ActiveState*) echo inactive ;;\n" +
					"*daemon-reload) ;; *) echo \"systemctl $*\" >>" + asked + " ;; esac\n",
			} {
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			// A program that runs has its path and its name; a script would have the shell's.
			runs := "mount -t tmpfs none /run\nmkdir -p /run/systemd\n"
			if c.unit != "" {
				runs += "mkdir /run/systemd/system\n"
			}
			start := func(program, with string) {
				runs += "mkdir -p " + filepath.Dir(program) + " && mv " + prefix + "/bin/coracled " + dir + "/kept\n" +
					"cp /bin/sleep " + program + "\n" + with + program + " 60 &\n" +
					"until [ \"$(readlink /proc/$!/exe)\" = " + program + " ]; do :; done\n" +
					"mv " + dir + "/kept " + prefix + "/bin/coracled\n"
			}
			for _, program := range strings.Fields(here(c.running)) {
				start(program, "")
			}
			if c.inside != "" {
				start(here(c.inside), "unshare --mount sh -ec 'mkdir "+dir+"/box; mount -t tmpfs none "+dir+"/box; cd "+dir+"/box; mkdir old\n"+
					"for d in bin lib lib64 proc tmp usr; do [ ! -d /$d ] || { mkdir $d; mount --rbind /$d $d; }; done\n"+
					"pivot_root . old; exec \"$@\"' sh ")
			}
			if c.prefix != "" {
				runs += "ln -s " + prefix + " " + dir + "/" + c.prefix + "\n"
				prefix = dir + "/" + c.prefix
			}
			removal := "sh " + script + " --uninstall --prefix " + prefix
			if c.user != "" {
				removal = "chown -R " + c.user + " " + dir + " && setpriv --reuid=" + c.user + " --clear-groups " + removal
			}
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
				"sh", "-ec", runs+removal)
			cmd.Env = append(os.Environ(), "PATH="+dir+"/path:"+os.Getenv("PATH"), "UNIT="+here(c.unit))
			out, err := cmd.CombinedOutput()
			if (err != nil) != c.fails || !strings.Contains(string(out), c.said) {
				t.Errorf("error %v, want one %t, and %q:\n%s", err, c.fails, c.said, out)
			}
			said, err := os.ReadFile(asked)
			if err != nil && !os.IsNotExist(err) || string(said) != c.asked {
				t.Errorf("programs were asked %q, want %q; %v", said, c.asked, err)
			}
			if _, err := os.Stat(prefix + "/bin/coracle"); (err == nil) != c.fails {
				t.Errorf("the program is still there: %t", err == nil)
			}
		})
	}
}
