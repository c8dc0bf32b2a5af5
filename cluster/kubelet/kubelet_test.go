package kubelet

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/coracle-project/coracle/cluster/client"
)

// A kubelet whose port is taken must say so before its node is reported ready.
func TestPortIsTakenAtOnce(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	dir := t.TempDir()
	kube := fake.NewClientset()
	_, err = New(&client.Set{Kube: kube, Informers: informers.NewSharedInformerFactory(kube, 0)}, Options{
		NodeName: "n", NodeIPs: []string{"127.0.0.1"}, Endpoint: "unix://" + filepath.Join(dir, "cri.sock"),
		RootDir: filepath.Join(dir, "kubelet"), LogDir: filepath.Join(dir, "logs", "pods"),
		Address: "127.0.0.1", Port: taken.Addr().(*net.TCPAddr).Port,
	})
	if err == nil || !strings.Contains(err.Error(), "address already in use (another kubelet may run") {
		t.Errorf("error %v", err)
	}
	if made, _ := os.ReadDir(dir); len(made) > 0 {
		t.Errorf("it has made %v", made)
	}
}
