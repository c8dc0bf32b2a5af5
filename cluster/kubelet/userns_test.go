package kubelet

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

func TestUserNamespaces(t *testing.T) {
	supported := true
	dir := t.TempDir()
	open := func() *userNamespaces {
		u := &userNamespaces{
			log:     discard,
			podsDir: dir, maxPods: 110, handler: func(*string) (string, error) { return "fast", nil },
			supports: func(string) bool { return supported },
		}
		u.open()
		return u
	}
	pod := func(uid string, hostUsers *bool) *v1.Pod {
		p := &v1.Pod{Spec: v1.PodSpec{HostUsers: hostUsers}}
		p.UID = types.UID(uid)
		return p
	}
	own := pod("a", ptr.To(false))
	u := open()
	for _, p := range []*v1.Pod{pod("b", nil), pod("b", ptr.To(true))} {
		if got, err := u.Of(p); got != nil || err != nil {
			t.Errorf("of a pod with the node's users: %v, %v", got, err)
		}
	}
	first, err := u.Of(own)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := open().Of(own); err != nil || again.String() != first.String() {
		t.Errorf("after a restart: %v, %v, not %v", again, err, first)
	}
	supported = false
	if _, err := u.Of(own); err == nil || !strings.Contains(err.Error(), `"fast" does not support user namespaces`) {
		t.Errorf("of a runtime without: %v", err)
	}
	supported = true
	u.Release(own.UID)
	if _, err := os.Stat(filepath.Join(dir, "a", "userns")); !os.IsNotExist(err) {
		t.Errorf("what a pod had, that is gone: %v", err)
	}

	// What is damaged concerns those alone that need it.
	if err := os.WriteFile(filepath.Join(dir, "a", "userns"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	u = open()
	if _, err := u.Of(pod("b", nil)); err != nil {
		t.Error(err)
	}
	if _, err := u.Of(own); err == nil || !strings.Contains(err.Error(), "invalid user namespace mappings file") {
		t.Errorf("with a damaged file: %v", err)
	}
	u.Release("b")
}
