package sysctls

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// The safe sysctls are those of the version of Kubernetes that is linked. Its package is read and
// not imported, which would compile the scheduler.
func TestSafeAsUpstream(t *testing.T) {
	dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", "k8s.io/kubernetes/pkg/kubelet/sysctl").Output()
	if err != nil {
		t.Fatal(err)
	}
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(strings.TrimSpace(string(dir)), "safe_sysctls.go"), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var upstream []string
	ast.Inspect(file, func(n ast.Node) bool {
		field, ok := n.(*ast.KeyValueExpr)
		if !ok {
			return true
		}
		if key, ok := field.Key.(*ast.Ident); ok && key.Name == "name" {
			name, err := strconv.Unquote(field.Value.(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			upstream = append(upstream, name)
		}
		return true
	})
	slices.Sort(upstream)
	if !slices.Equal(upstream, safe) {
		t.Errorf("safe sysctls are\n%v\nupstream's\n%v", safe, upstream)
	}
}

func TestCheck(t *testing.T) {
	allowed, err := New([]string{"net.core.*", "kernel.msgmax"})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		edit func(*v1.PodSpec)
		want string
	}{
		{"kernel.shm_rmid_forced", nil, ""},
		{"net.ipv4.tcp_rmem", nil, ""},
		{"net/ipv4/ping_group_range", nil, ""},
		{"net.core.somaxconn", nil, ""},
		{"kernel.msgmax", nil, ""},
		{"kernel.msgmnb", nil, `forbidden sysctl: "kernel.msgmnb" not allowlisted`},
		{"net.ipv4.tcp_mem", nil, `forbidden sysctl: "net.ipv4.tcp_mem" not allowlisted`},
		{"kernel.core_pattern", nil, `forbidden sysctl: "kernel.core_pattern" not allowlisted`},
		{"net.coreutils", nil, `forbidden sysctl: "net.coreutils" not allowlisted`},
		{"vm/overcommit_memory", nil, `forbidden sysctl: "vm.overcommit_memory" not allowlisted`},
		{
			"net.core.somaxconn", func(s *v1.PodSpec) { s.HostNetwork = true },
			`forbidden sysctl: "net.core.somaxconn" not allowed with host Net enabled`,
		},
		{
			"net.ipv4.tcp_rmem", func(s *v1.PodSpec) { s.HostNetwork = true },
			`forbidden sysctl: "net.ipv4.tcp_rmem" not allowed with host Net enabled`,
		},
		{"kernel.msgmax", func(s *v1.PodSpec) { s.HostIPC = true }, `forbidden sysctl: "kernel.msgmax" not allowed with host IPC enabled`},
	} {
		p := &v1.Pod{}
		p.Spec.SecurityContext = &v1.PodSecurityContext{Sysctls: []v1.Sysctl{{Name: tt.name, Value: "1"}}}
		if tt.edit != nil {
			tt.edit(&p.Spec)
		}
		said := ""
		if err := allowed.Check(p); err != nil {
			said = err.Error()
		}
		if said != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, said, tt.want)
		}
	}
	if err := allowed.Check(&v1.Pod{}); err != nil {
		t.Errorf("a pod without: %v", err)
	}
}

func TestNewRefuses(t *testing.T) {
	for _, pattern := range []string{"", "*", "kernel.*", "vm.swappiness", "kernel.core_pattern", "net.*.x", "a b"} {
		if _, err := New([]string{pattern}); err == nil {
			t.Errorf("%q is allowed", pattern)
		}
	}
}
