package kube

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/coracle-project/coracle/internal/testkit"
)

// lookup asks the cluster's DNS for a name over a socket made where it is called, until there is an
// answer.
func lookup(name string) error {
	query := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 1, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}},
	}
	packet, err := query.Pack()
	if err != nil {
		return err
	}
	conn, err := net.Dial("udp", "10.96.0.10:53")
	if err != nil {
		return err
	}
	defer conn.Close()
	for end := time.Now().Add(patience); ; {
		answer := make([]byte, 512)
		_ = conn.SetDeadline(time.Now().Add(time.Second))
		var m dnsmessage.Message
		_, err := conn.Write(packet)
		n := 0
		if err == nil {
			n, err = conn.Read(answer)
		}
		if err == nil {
			err = m.Unpack(answer[:n])
		}
		if err == nil && len(m.Answers) == 0 {
			err = fmt.Errorf("no answer: %v", m.RCode)
		}
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}

// Pods that CNI plugins have connected reach the API server and the DNS as all others do, also when
// the cluster process was killed.
func TestPodsOfPluginsReachTheCluster(t *testing.T) {
	c := newCluster(t)
	dir := filepath.Dir(c.root)
	err := errors.Join(os.MkdirAll(filepath.Join(dir, "cni"), 0o700), os.WriteFile(filepath.Join(dir, "cni", "10.conflist"), fmt.Appendf(nil, `{
  "cniVersion": "1.0.0", "name": "kube", "plugins": [{"type": "bridge", "bridge": "cnikube0", "isGateway": true,
    "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.198.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}`,
		filepath.Join(dir, "ipam")), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // the plugin leaves it on purpose
		if link, err := netlink.LinkByName("cnikube0"); err == nil {
			_ = netlink.LinkDel(link)
		}
	})
	c.kube(t, "run", "n", "--image", registry.Addr+"/demo/web:1")
	c.await(t, "wait", "--for=condition=Ready", "pod/n")
	if _, err := net.InterfaceByName("cnikube0"); err != nil {
		t.Fatalf("the plugin has connected no pod: %v", err)
	}
	for range 2 {
		err := c.inPod(t, func() error {
			var err error
			for end := time.Now().Add(patience); ; { // up does not wait forever until pods reach it
				var status int
				var body string
				if status, body, err = request("10.96.0.1:443", "/version", ""); err == nil && status == 0 {
					err = errors.New(body)
				}
				if err == nil || time.Now().After(end) {
					break
				}
			}
			return errors.Join(err, lookup("kubernetes.default.svc.cluster.local."))
		})
		if err != nil {
			t.Error(err)
		}
		if err := testkit.Kill(c.process(t, "coracle-kube")); err != nil {
			t.Fatal(err)
		}
		c.up(t)
	}
	c.kube(t, "delete", "pod", "n", "--now")
}
