package cri

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
)

// exited is an exited container with these host files mounted at its terminationMessagePath.
func exited(files ...string) *runtimeapi.ContainerStatus {
	s := &runtimeapi.ContainerStatus{Annotations: map[string]string{annotationMessagePath: "/dev/termination-log"}}
	for _, f := range files {
		s.Mounts = append(s.Mounts, &runtimeapi.Mount{ContainerPath: "/dev/termination-log", HostPath: f})
	}
	return s
}

// message is terminationMessage, which must not wait for anything.
func message(t *testing.T, s *runtimeapi.ContainerStatus) string {
	t.Helper()
	got := make(chan string, 1)
	go func() { got <- terminationMessage(s) }()
	select {
	case m := <-got:
		return m
	case <-time.After(10 * time.Second):
		t.Fatal("reading the message hangs")
		return ""
	}
}

// An init container can make a FIFO, a device or a link in a volume that the next container mounts
// at its terminationMessagePath. The kubelet neither waits for the one, nor opens the others.
func TestHostileTerminationMessages(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	for _, err := range []error{
		unix.Mkfifo(file("fifo"), 0o666),
		os.WriteFile(file("secret"), []byte("secret"), 0o600),
		os.Symlink(file("secret"), file("link")),
		os.WriteFile(file("own"), []byte("last word"), 0o666),
		os.WriteFile(file("empty"), nil, 0o666),
		os.WriteFile(file("long"), []byte(strings.Repeat("x", kubecontainer.MaxContainerTerminationMessageLength)+"end"), 0o666),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, hostile := range []string{file("fifo"), "/dev/zero", file("link"), dir} {
		if got := message(t, exited(hostile, file("own"))); got != "last word" {
			t.Errorf("%s under the kubelet's own file: %q", hostile, got)
		}
		if got := message(t, exited(hostile, file("empty"))); got != "" {
			t.Errorf("%s under the kubelet's own file, which is empty: %q", hostile, got)
		}
		if got := message(t, exited(hostile)); !strings.HasPrefix(got, "Error on reading termination log ") {
			t.Errorf("%s alone: %q", hostile, got)
		}
	}
	got := message(t, exited(file("long")))
	if len(got) != kubecontainer.MaxContainerTerminationMessageLength || !strings.HasSuffix(got, "xend") {
		t.Errorf("a long message: %d bytes", len(got))
	}
	if got := message(t, exited(file("missing"))); got != "" {
		t.Errorf("no file: %q", got)
	}
}
