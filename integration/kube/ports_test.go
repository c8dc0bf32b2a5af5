package kube

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// inPod runs f on a thread in the network namespace of the cluster's only pod. The thread ends with
// it.
func (c *cluster) inPod(t *testing.T, f func() error) error {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(c.state, "ns", "*", "net"))
	if err != nil || len(all) != 1 {
		t.Fatalf("pods' network namespaces: %v, %v", all, err)
	}
	return <-inNetwork(all[0], f)
}

// inNetwork runs f on a thread in a network namespace. The thread ends with it.
func inNetwork(path string, f func() error) <-chan error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Setns(fd, unix.CLONE_NEWNET)
			_ = unix.Close(fd)
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return done
}

// request sends a GET over a connection made where it is called. token may be empty.
func request(address, path, token string) (status int, body string, err error) {
	conn, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		return 0, "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	secure := tls.Client(conn, &tls.Config{InsecureSkipVerify: true}) // who answers is not the question
	req, err := http.NewRequest(http.MethodGet, "https://"+address+path, nil)
	if err != nil {
		return 0, "", err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialTLSContext:    func(context.Context, string, string) (net.Conn, error) { return secure, nil },
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(data), err
}

// firstEvent waits for an event that a field selector takes, and returns its message.
func (c *cluster) firstEvent(t *testing.T, selector string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	watch := exec.CommandContext(ctx, c.kubectl, "--kubeconfig", c.kubeconfig(), "get", "events", "--field-selector", selector,
		"--watch", "--no-headers", "-o", "custom-columns=MESSAGE:.message")
	out, err := watch.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	cancel()
	_ = watch.Wait() // it was killed
	if err != nil {
		t.Fatalf("no event %s: %v", selector, err)
	}
	return line
}

// What a pod gets of the node's own ports: the kubelet's API and the API server answer it, and let
// in only who RBAC does. The API server is bound to loopback, which no pod reaches; pods have the
// address of its Service, though one of them has that Service's port of the node's addresses.
func TestPodsAndTheNodesPorts(t *testing.T) {
	c := newCluster(t)
	c.apply(t, fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: web, image: "%s/demo/web:1", ports: [{containerPort: 8080, hostPort: 443}]}]
`, registry.Addr))
	c.await(t, "wait", "--for=condition=Ready", "pod/web")
	c.kube(t, "create", "serviceaccount", "reader")
	c.kube(t, "create", "clusterrolebinding", "reader", "--clusterrole", "system:kubelet-api-admin", "--serviceaccount", "default:reader")
	for end := time.Now().Add(patience); ; { // the API server learns of it a moment later
		said, err := c.tryKube("", "auth", "can-i", "list", "nodes", "--as", "system:serviceaccount:default:reader")
		if err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the account has no rights: %v, %s", err, said)
		}
	}
	token := func(account string) string { return strings.TrimSpace(c.kube(t, "create", "token", account)) }
	const node = "10.85.0.1" // the host's address in the pods' network
	for name, tc := range map[string]struct {
		token string
		want  int
	}{
		"anonymous":                             {"", http.StatusUnauthorized},
		"a forged token":                        {"eyJhbGciOiJub25lIn0.e30.", http.StatusUnauthorized},
		"the pod's account":                     {token("default"), http.StatusForbidden},
		"positive control: a permitted account": {token("reader"), http.StatusOK},
	} {
		for address, path := range map[string]string{
			node + ":10250":  "/pods",
			"10.96.0.1:443":  "/api/v1/nodes",
			"10.96.0.1:6443": "/api/v1/nodes",
		} {
			var status int
			err := c.inPod(t, func() (err error) {
				status, _, err = request(address, path, tc.token)
				return err
			})
			if err != nil || status != tc.want {
				t.Errorf("https://%s%s, %s: %d, %v; want %d", address, path, name, status, err, tc.want)
			}
		}
	}
	// The node reaches the API server at both addresses, and at its own ones the pod with the host
	// port.
	for _, address := range []string{"127.0.0.1:6443", "10.96.0.1:443"} {
		if status, _, err := request(address, "/version", ""); err != nil || status == 0 {
			t.Errorf("the API server at %s from the node: %d, %v", address, status, err)
		}
	}
	resp, err := http.Get("http://" + node + ":443/")
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("the pod's host port: %+v, %v", resp, err)
	}
	resp.Body.Close()
	// It has no other address of the node's.
	err = c.inPod(t, func() error {
		_, _, err := request(node+":6443", "/version", "")
		return err
	})
	if !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("the API server at another address, from a pod: %v", err)
	}
	c.kube(t, "delete", "pod", "web", "--now")
}

// Pods ask for host ports where the node's own services listen, or would listen if they ran.
func TestPodsDoNotGetTheNodesPorts(t *testing.T) {
	c := newCluster(t)
	pod := func(name string, port int) {
		c.apply(t, fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: web, image: "%s/demo/web:1", ports: [{containerPort: 8080, hostPort: %d}]}]
`, name, registry.Addr, port))
	}
	_, text, err := net.SplitHostPort(registry.Addr)
	if err != nil {
		t.Fatal(err)
	}
	registryPort, err := net.LookupPort("tcp", text)
	if err != nil {
		t.Fatal(err)
	}
	pod("api", 6443)
	pod("kubelet", 10250)
	for name, owner := range map[string]string{"api": "6443/TCP belongs to the API server", "kubelet": "10250/TCP belongs to the kubelet"} {
		c.await(t, "wait", "--for=jsonpath={.status.reason}=HostPortReserved", "pod/"+name)
		var p struct {
			Status struct{ Phase, Message string }
		}
		if err := json.Unmarshal([]byte(c.kube(t, "get", "pod", name, "-o", "json")), &p); err != nil {
			t.Fatal(err)
		}
		if p.Status.Phase != "Failed" || !strings.Contains(p.Status.Message, owner) {
			t.Errorf("pod %s: %+v", name, p.Status)
		}
	}
	// The registry is no service that the kubelet knows: coracled sees that someone listens.
	pod("registry", registryPort)
	reason := c.firstEvent(t, "involvedObject.name=registry,reason=FailedCreatePodSandBox")
	if !strings.Contains(reason, "a process of the node listens on 127.0.0.1:"+text) {
		t.Errorf("the registry's port: %q", reason)
	}
	// All that listened is there as before.
	if resp, err := http.Get("http://" + registry.Addr + "/v2/"); err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("the registry: %v", err)
	} else {
		resp.Body.Close()
	}
	c.kube(t, "get", "nodes")
	c.kube(t, "delete", "pod", "--all", "--now")
}
