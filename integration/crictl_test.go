package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coracle-project/coracle/internal/testkit"
)

// crictlFiles writes the JSON that crictl takes.
func crictlFiles(t *testing.T, n *node) (pod, web, shell string) {
	t.Helper()
	write := func(name string, v any) string {
		raw, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		p := filepath.Join(n.Logs, name)
		if err := os.WriteFile(p, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	type m map[string]any
	pod = write("pod.json", m{
		"metadata": m{"name": "crictl", "namespace": "default", "uid": "u1"}, "hostname": "crictl",
		"log_directory": n.Logs, "linux": m{"cgroup_parent": n.Cgroup},
	})
	web = write("web.json", m{
		"metadata": m{"name": "web"}, "image": m{"image": testRef("web")}, "log_path": "web.log",
		"args": []string{"-listen", ":8080"}, "linux": m{},
	})
	shell = write("shell.json", m{
		"metadata": m{"name": "shell"}, "image": m{"image": testRef("busybox")}, "log_path": "shell.log",
		"command": []string{"sh"}, "stdin": true, "tty": false, "linux": m{},
	})
	return pod, web, shell
}

// The operator's whole day with the real crictl.
func TestCrictl(t *testing.T) {
	n := newNode(t, testkit.Options{})
	podFile, webFile, shellFile := crictlFiles(t, n)

	if out := n.Crictl(t, "version"); !strings.Contains(out, "coracle") {
		t.Errorf("version: %s", out)
	}
	if out := n.Crictl(t, "info"); !strings.Contains(out, "RuntimeReady") {
		t.Errorf("info: %s", out)
	}
	n.Crictl(t, "pull", testRef("web"))
	n.Crictl(t, "pull", testRef("busybox"))
	if out := n.Crictl(t, "images"); strings.Count(out, registry.Addr) != 2 {
		t.Errorf("images: %s", out)
	}
	n.Crictl(t, "inspecti", testRef("web"))
	n.Crictl(t, "imagefsinfo")

	pod := n.Crictl(t, "runp", podFile)
	web := n.Crictl(t, "create", "--no-pull", pod, webFile, podFile)
	n.Crictl(t, "start", web)
	shell := n.Crictl(t, "create", "--no-pull", pod, shellFile, podFile)
	n.Crictl(t, "start", shell)

	if out := n.Crictl(t, "pods"); !strings.Contains(out, "Ready") || !strings.Contains(out, pod[:13]) {
		t.Errorf("pods: %s", out)
	}
	if out := n.Crictl(t, "ps"); strings.Count(out, "Running") != 2 {
		t.Errorf("ps: %s", out)
	}
	var inspect struct {
		Status struct{ State, ImageRef string }
	}
	if err := json.Unmarshal([]byte(n.Crictl(t, "inspect", web)), &inspect); err != nil || inspect.Status.State != "CONTAINER_RUNNING" {
		t.Errorf("inspect: %+v, %v", inspect, err)
	}
	n.Crictl(t, "inspectp", pod)
	if out := n.Crictl(t, "stats", web); !strings.Contains(out, "web") {
		t.Errorf("stats: %s", out)
	}

	// exec: synchronously, over SPDY and over WebSocket.
	for _, args := range [][]string{{"--sync"}, {}, {"-r", "websocket"}} {
		out := n.Crictl(t, append(append([]string{"exec"}, args...), web, "hostname")...)
		if strings.TrimSpace(out) != "crictl" {
			t.Errorf("exec %v: %q", args, out)
		}
	}
	if _, err := n.TryCrictl(nil, "exec", web, "sh", "-c", "exit 3"); err == nil {
		t.Error("exec of a failing command: no error")
	}
	for _, transport := range []string{"spdy", "websocket"} {
		// cat ends with its input, which has to be passed on.
		if out, err := n.TryCrictl([]byte("twice\n"), "exec", "-r", transport, "-i", web, "cat"); err != nil || out != "twice" {
			t.Errorf("exec -i over %s: %q, %v", transport, out, err)
		}
	}
	// attach: the shell reads what crictl reads.
	if out, err := n.TryCrictl([]byte("echo attached-$((40+2)); exit\n"), "attach", "-i", shell); err != nil ||
		!strings.Contains(out, "attached-42") {
		t.Errorf("attach: %q, %v", out, err)
	}
	eventually(t, "the log has what the shell said", func() bool {
		out, err := n.TryCrictl(nil, "logs", shell)
		return err == nil && strings.Contains(out, "attached-42")
	})
	if body := portForward(t, n, pod); !strings.Contains(body, "in pod crictl") {
		t.Errorf("port-forward: %q", body)
	}
	if out := n.Crictl(t, "logs", web); !strings.Contains(out, "serving on") {
		t.Errorf("logs: %s", out)
	}
	n.Crictl(t, "update", "--memory", "67108864", web)
	n.Crictl(t, "stop", "-t", "5", web)
	n.Crictl(t, "rm", web)
	n.Crictl(t, "stopp", pod)
	n.Crictl(t, "rmp", pod)
	n.Crictl(t, "rmi", testRef("web"), testRef("busybox"))
	if out := n.Crictl(t, "images", "-q"); out != "" {
		t.Errorf("images after rmi: %s", out)
	}
}

// portForward fetches the web server's page through crictl port-forward.
func portForward(t *testing.T, n *node, pod string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_, port, _ := net.SplitHostPort(addr)
	l.Close()
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, testkit.Bin(t, "tools", "crictl"), "-c", "/dev/null", "-r", "unix://"+n.Socket, "port-forward", pod,
		port+":8080")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var body string
	eventually(t, "the forwarded port answers", func() bool {
		r, err := http.Get("http://" + addr + "/")
		if err != nil {
			return false
		}
		defer r.Body.Close()
		raw, err := io.ReadAll(r.Body)
		body = string(raw)
		return err == nil
	})
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	return body
}
