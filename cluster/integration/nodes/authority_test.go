//go:build nodes

package nodes

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/coracle-project/coracle/cluster/internal/testkit"
)

// TestAuthority replaces the authority of a cluster of two while clients ask, and again while
// processes are killed.
func TestAuthority(t *testing.T) {
	all := cluster(t, 2)
	one, two := all[0], all[1]
	up(t, all)
	startRegistry(t)
	kube := client(t, one)
	for _, m := range all {
		awaitPod(t.Context(), t, kube, pod(t.Context(), t, kube, "web-"+m.Name, m.Name).Name)
	}
	former, err := clientcmd.BuildConfigFromFlags("", filepath.Join(one.Root, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	one.Refused(t, "no authority is being replaced", "certificate", "rotate", "--authority", "--finish")

	// One more client has what a pod's has when it starts, and never looks again.
	account := two.account(t)
	once := rest.CopyConfig(account)
	once.CAData, once.CAFile = contents(t, account.CAFile), ""
	load := ask(t, map[string]*rest.Config{
		"a pod's client": account, "a pod's client that reads the authority once": once,
	})
	administrator := ask(t, map[string]*rest.Config{"a copy of the kubeconfig": former})
	if said := one.Must(t, "certificate", "rotate", "--authority"); !strings.Contains(said, "all nodes follow") {
		t.Errorf("rotate --authority: %s", said)
	}
	if list := one.Must(t, "certificate", "check"); !strings.Contains(list, "trusted until") {
		t.Errorf("certificate check does not show the former authority: %s", list)
	}
	if hashes := one.Invite(t).CAHash; strings.Count(hashes, "sha256:") != 2 {
		t.Errorf("machines that join get the hashes %s, want those of both authorities", hashes)
	}
	one.Refused(t, "is being replaced", "token", "create", "--control-plane")
	administrator()
	if said := one.Must(t, "certificate", "rotate", "--authority", "--finish"); !strings.Contains(said, "not trusted any more") {
		t.Errorf("rotate --authority --finish: %s", said)
	}
	testkit.Eventually(t.Context(), t, "the copy of the kubeconfig is refused", func() (bool, error) {
		_, err := whoAmI(t.Context(), former)
		return apierrors.IsUnauthorized(err), err
	})
	all[0].works(t, all)
	load()

	// Killed when the new authority is there, and nothing else may be.
	for _, m := range all {
		t.Run("killed: "+m.Name, func(t *testing.T) { one.replaceAndKill(t, m) })
		one.works(t, all)
	}
	for _, m := range all {
		p, err := client(t, one).CoreV1().Pods("default").Get(t.Context(), "web-"+m.Name, metav1.GetOptions{})
		if err != nil || len(p.Status.ContainerStatuses) != 1 || p.Status.ContainerStatuses[0].RestartCount != 0 {
			t.Errorf("pod web-%s: %+v, %v", m.Name, p.Status.ContainerStatuses, err)
		}
	}
}

// works has the API server call both kubelets.
func (m *machine) works(t *testing.T, all []*machine) {
	t.Helper()
	for _, other := range all {
		testkit.Eventually(t.Context(), t, "exec on "+other.Name, func() (bool, error) {
			_, said, err := m.kubectl("exec", "web-"+other.Name, "--", "true")
			if err != nil {
				t.Log(said)
			}
			return err == nil, err
		})
	}
}

// replaceAndKill replaces the authority, and kills the cluster process or agent of a node when the
// new one is written. Then the command is repeated.
func (m *machine) replaceAndKill(t *testing.T, killed *machine) {
	file := filepath.Join(m.Root, "kube", "pki", "ca.pem")
	before := contents(t, file)
	done := make(chan struct{})
	go func() { defer close(done); _, _, _ = m.Run("certificate", "rotate", "--authority", "--timeout", "1s") }()
	testkit.Eventually(t.Context(), t, "another authority is written", func() (bool, error) {
		return !bytes.Equal(contents(t, file), before), nil
	})
	killed.killKube(t)
	<-done
	testkit.Eventually(t.Context(), t, "the rotation is resumed", func() (bool, error) {
		_, said, err := m.Run("certificate", "rotate", "--authority")
		if err != nil {
			t.Log(said)
		}
		return err == nil, err
	})
	if got := bytes.Count(contents(t, file), []byte("Replaced:")); got != 1 {
		t.Errorf("%d former authorities are trusted, want one", got)
	}
	m.Must(t, "certificate", "rotate", "--authority", "--finish")
}

// killKube kills the cluster process or the agent of a node.
func (m *machine) killKube(t *testing.T) {
	t.Helper()
	if err := unix.Kill(m.kubePID(t), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// kubePID is the cluster process or the agent of a node.
func (m *machine) kubePID(t *testing.T) int {
	t.Helper()
	role := map[bool]string{true: "server", false: "agent"}[m.n == 1]
	for _, p := range testkit.Processes() {
		if len(p.Args) > 1 && filepath.Base(p.Args[0]) == "coracle-kube" && p.Args[1] == role && strings.Contains(p.Line(), m.dir) {
			return p.PID
		}
	}
	t.Fatalf("no %s of node %s runs", role, m.Name)
	return 0
}

// account returns the client of the pod on a node, with the token and the authority that its
// kubelet has mounted in the node's mount namespace.
func (m *machine) account(t *testing.T) *rest.Config {
	t.Helper()
	root := fmt.Sprintf("/proc/%d/root", m.kubePID(t))
	dirs, err := filepath.Glob(filepath.Join(root, m.Root, "kube/kubelet/pods/*/volumes/kubernetes.io~projected/kube-api-access-*"))
	if err != nil || len(dirs) != 1 {
		t.Fatalf("mounted for pods are %v, %v", dirs, err)
	}
	return &rest.Config{
		Host: "https://" + firstIP + ":6443", BearerTokenFile: filepath.Join(dirs[0], "token"),
		TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(dirs[0], "ca.crt")},
	}
}

func contents(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// ask has clients ask all the time, each time by another connection, until stop is called. A
// request may fail once.
func ask(t *testing.T, clients map[string]*rest.Config) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	for name, config := range clients {
		asking.Go(func() {
			count, retried := 0, 0
			for ; ctx.Err() == nil; count++ {
				_, err := whoAmI(ctx, config)
				if err != nil && ctx.Err() == nil {
					retried++
					t.Logf("%s, request %d: %v", name, count, err)
					_, err = whoAmI(ctx, config)
				}
				if err != nil && ctx.Err() == nil {
					t.Errorf("%s, request %d: %v", name, count, err)
				}
				select {
				case <-time.After(20 * time.Millisecond):
				case <-ctx.Done():
				}
			}
			t.Logf("%s: %d requests, %d repeated", name, count, retried)
		})
	}
	stop = sync.OnceFunc(func() { cancel(); asking.Wait() })
	t.Cleanup(stop)
	return stop
}

// whoAmI asks by a new connection with what the files of config have now.
func whoAmI(ctx context.Context, config *rest.Config) (*authenticationv1.SelfSubjectReview, error) {
	config = rest.CopyConfig(config)
	// client-go keeps connections of clients that are configured alike.
	config.Timeout = 5 * time.Second
	config.Dial = (&net.Dialer{}).DialContext
	hc, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	defer hc.CloseIdleConnections()
	kube, err := kubernetes.NewForConfigAndClient(config, hc)
	if err != nil {
		return nil, err
	}
	return kube.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
}
