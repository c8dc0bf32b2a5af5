package apiserver

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// rerouted is where connections of the proxy of pods, Services and nodes go instead: it takes no
// loopback addresses.
var rerouted sync.Map

// reroute has connections to an address go where rerouted says.
func reroute(transport *http.Transport) {
	dial := transport.DialContext
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		if to, ok := rerouted.Load(address); ok {
			address = to.(string)
		}
		return dial(ctx, network, address)
	}
}

// hostileHeader is how long the header is that endlessHeaders sends, which is as good as endless.
const hostileHeader = 64 << 20

// endlessHeaders is a server that answers with a header that does not end. It counts what it sends.
func endlessHeaders(t *testing.T) (*httptest.Server, *atomic.Int64) {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(server.options.PKI.Serving, server.options.PKI.Serving)
	if err != nil {
		t.Fatal(err)
	}
	sent := new(atomic.Int64)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(patience))
		fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n")
		block := []byte(strings.Repeat("A: "+strings.Repeat("a", 1<<10-5)+"\r\n", 64))
		for sent.Load() < hostileHeader && err == nil {
			var n int
			n, err = conn.Write(block)
			sent.Add(int64(n))
		}
		fmt.Fprint(conn, "\r\n")
	}))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s, sent
}

// hostile makes a node whose kubelet, and a pod and a Service whose server, answer at address. It
// returns the paths of all subresources that take upgraded connections.
func hostile(t *testing.T, address string) (spdy, webSocket []string) {
	t.Helper()
	client := admin(t)
	ns := namespace(t, client)
	_, text, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	const outside = "192.0.2.7"
	rerouted.Store(net.JoinHostPort(outside, "9443"), address)
	for name, ip := range map[string]string{ns: "127.0.0.1", ns + "-proxied": outside} {
		_, err := client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Status: corev1.NodeStatus{
				Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: ip}},
				DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(port)}},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	pod, err := client.CoreV1().Pods(ns).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec:       corev1.PodSpec{NodeName: ns, Containers: []corev1.Container{{Name: "main", Image: "image"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod.Status.Phase, pod.Status.PodIP, pod.Status.PodIPs = corev1.PodRunning, outside, []corev1.PodIP{{IP: outside}}
	if _, err := client.CoreV1().Pods(ns).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = client.CoreV1().Services(ns).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 9443}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	//lint:ignore SA1019 the proxy of Services reads them
	_, err = client.CoreV1().Endpoints(ns).Create(t.Context(), &corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{Name: "s"},
		//lint:ignore SA1019 as above
		Subsets: []corev1.EndpointSubset{{
			Addresses: []corev1.EndpointAddress{{IP: outside, TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: ns, Name: "p"}}},
			Ports:     []corev1.EndpointPort{{Port: 9443}},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	in := "/api/v1/namespaces/" + ns
	exec := in + "/pods/p/exec?command=x&stdout=1"
	attach, forward := in+"/pods/p/attach?stdout=1", in+"/pods/p/portforward?ports=80"
	return []string{
		exec, attach, forward, in + "/pods/https:p:9443/proxy/x", in + "/services/https:s:9443/proxy/x",
		"/api/v1/nodes/https:" + ns + "-proxied:9443/proxy/x",
	}, []string{exec, attach, forward}
}

// upgraded sends an administrator's request for an upgraded connection, and returns all that is
// answered.
func upgraded(t *testing.T, path string, headers ...string) string {
	t.Helper()
	config := overTLS(t)
	secure, err := rest.TLSConfigFor(config)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := tls.Dial("tcp", server.Address().String(), secure)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n%s\r\n\r\n", path, strings.Join(headers, "\r\n"))
	answer := bufio.NewReader(conn)
	resp, err := http.ReadResponse(answer, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var body io.Reader = resp.Body
	if resp.StatusCode == http.StatusSwitchingProtocols {
		body = answer
	}
	said, _ := io.ReadAll(io.LimitReader(body, 1<<20))
	return resp.Status + ": " + string(said)
}

// A pod, or a node, that answers the request for an upgraded connection with an endless header does
// not take the API server's memory.
func TestEndlessHeadersOfUpgrades(t *testing.T) {
	for name, headers := range map[string][]string{
		"spdy": {"Upgrade: SPDY/3.1", "X-Stream-Protocol-Version: v4.channel.k8s.io"},
		"websocket": {
			"Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
			"Sec-WebSocket-Protocol: v5.channel.k8s.io, SPDY/3.1+portforward.k8s.io",
		},
	} {
		s, sent := endlessHeaders(t)
		paths, webSocket := hostile(t, s.Listener.Addr().String())
		if name == "websocket" {
			paths = webSocket
		}
		for _, path := range paths {
			t.Run(name+path, func(t *testing.T) {
				sent.Store(0)
				said := upgraded(t, path, headers...)
				if !strings.Contains(said, "longer than 1048576 bytes") {
					t.Errorf("%.500s", said)
				}
				if n := sent.Load(); n == 0 || n > hostileHeader/2 { // the kernel's buffers take some
					t.Errorf("the API server took %d bytes", n)
				}
			})
		}
	}
}

// A pod, or a node, that sends an endless HTML page through the proxy does not take the API
// server's memory.
func TestEndlessPagesOfProxies(t *testing.T) {
	var sent atomic.Int64
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		block := make([]byte, 64<<10)
		for err := error(nil); err == nil && sent.Load() < hostileHeader; {
			var n int
			n, err = w.Write(block)
			sent.Add(int64(n))
		}
	}))
	defer s.Close()
	paths, _ := hostile(t, s.Listener.Addr().String())
	config := overTLS(t)
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if !strings.Contains(path, "/proxy/") {
			continue
		}
		t.Run(path, func(t *testing.T) {
			sent.Store(0)
			resp, err := client.Get(config.Host + path)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if n := sent.Load(); resp.StatusCode != http.StatusOK || n == 0 || n > hostileHeader/2 {
				t.Errorf("%s, the API server took %d bytes before the client got any", resp.Status, n)
			}
		})
	}
}
