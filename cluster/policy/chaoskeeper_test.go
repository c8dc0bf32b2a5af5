package policy

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/health"
	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

// keeperVariable makes this program a process that enforces policies, for TestKills.
const keeperVariable = "CORACLE_TEST_KEEPER"

func TestMain(m *testing.M) {
	if os.Getenv(keeperVariable) != "" {
		if err := keepPolicies(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1] // the other one waits, by one clock for all
	os.Exit(m.Run())
}

// order is what such a process is told: an object, that there are no more at the start, or to say
// when all is in force.
type order struct {
	Pod       *corev1.Pod                 `json:",omitempty"`
	Policy    *networkingv1.NetworkPolicy `json:",omitempty"`
	Gone      bool                        `json:",omitempty"`
	Addresses []netip.Addr                `json:",omitempty"` // the kubelet admits the pod
	Start     bool                        `json:",omitempty"`
	Settle    bool                        `json:",omitempty"`
}

// keepPolicies enforces policies until its input ends.
func keepPolicies(in io.Reader, out io.Writer) error {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	k, err := newFed()
	if err != nil {
		return err
	}
	orders := json.NewDecoder(bufio.NewReader(in))
	for {
		var o order
		if err := orders.Decode(&o); err != nil {
			return nil
		}
		switch {
		case o.Start:
			go k.p.Run(context.Background()) // until it is killed
		case o.Settle:
			k.settle()
			fmt.Fprintln(out, "settled")
		default:
			k.take(o)
		}
	}
}

// fed is a Policy that is told of objects as informers would.
type fed struct {
	p       *Policy
	settled chan struct{} // all is in force
}

func newFed() (*fed, error) {
	api := fake.NewClientset()
	informers := client.NewInformers(api)
	var board health.Board
	p, err := New(&client.Set{Kube: api, Informers: informers}, Options{
		Health: board.Add("network policies"),
		Table:  testTable, NodeName: "here",
		PodRanges: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/24"), netip.MustParsePrefix("fd00:244::/64")},
	})
	if err != nil {
		return nil, err
	}
	f := &fed{p: p, settled: make(chan struct{}, 1)}
	p.did = func() { // by the loop, which has nothing half done then
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.state.Pending() && board.States()[0].Healthy {
			select {
			case f.settled <- struct{}{}:
			default:
			}
		}
	}
	p.namespaceHandler().OnAdd(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, true)
	informers.Start(context.Background().Done())
	return f, nil
}

func (f *fed) take(o order) {
	tell := func(handler cache.ResourceEventHandler, object any) {
		if o.Gone {
			handler.OnDelete(object)
		} else {
			handler.OnAdd(object, false)
		}
	}
	switch {
	case o.Policy != nil:
		tell(f.p.policyHandler(), o.Policy)
	case len(o.Addresses) > 0:
		go func() { _ = f.p.Admit(context.Background(), o.Pod, o.Addresses) }()
	default:
		if tell(f.p.podHandler(), o.Pod); o.Gone {
			f.p.Gone(o.Pod.UID)
		}
	}
}

func (f *fed) settle() {
	select {
	case <-f.settled:
	default:
	}
	f.p.signal()
	<-f.settled
}

// keeperProcess is a process that enforces policies on a node.
type keeperProcess struct {
	t      *testing.T
	cmd    *exec.Cmd
	orders *json.Encoder
	in     io.WriteCloser
	out    *bufio.Scanner
}

func startKeeper(t *testing.T, node *testnet.Node, w *world) *keeperProcess {
	t.Helper()
	k := &keeperProcess{t: t, cmd: exec.Command(os.Args[0])}
	k.cmd.Env = append(os.Environ(), keeperVariable+"=1")
	k.cmd.Stderr = os.Stderr
	var err error
	if k.in, err = k.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := k.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	k.orders, k.out = json.NewEncoder(k.in), bufio.NewScanner(out)
	if err := node.Start(k.cmd); err != nil {
		t.Fatal(err)
	}
	k.tell(w.all()...)
	k.tell(order{Start: true})
	return k
}

func (k *keeperProcess) tell(orders ...order) {
	k.t.Helper()
	for _, o := range orders {
		if err := k.orders.Encode(o); err != nil {
			k.t.Fatal(err)
		}
	}
}

// settled tells it that there is nothing more, and returns when all is in force.
func (k *keeperProcess) settled() {
	k.t.Helper()
	k.tell(order{Settle: true})
	late := time.AfterFunc(testnet.Patience, func() { _ = k.cmd.Process.Kill() })
	defer late.Stop()
	if !k.out.Scan() {
		k.t.Fatalf("the process ends, or has not settled after %s: %v", testnet.Patience, k.out.Err())
	}
}

func (k *keeperProcess) kill() {
	k.t.Helper()
	if err := k.cmd.Process.Kill(); err != nil {
		k.t.Error(err)
	}
	_ = k.in.Close()
	_ = k.cmd.Wait()
}
