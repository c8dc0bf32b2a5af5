package imagepeers

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
)

func object(name string, addresses ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}}
	for _, a := range addresses {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	return n
}

func TestFile(t *testing.T) {
	state := t.TempDir()
	path := filepath.Join(state, "image-peers", "nodes.json")
	nodes := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	p := &Peers{
		Options: Options{
			NodeName: "b", Socket: "unix://" + state + "/coracle.sock", CA: "/ca.crt", Client: "/client.pem", Serving: "/serving.pem",
		},
		nodes: corelisters.NewNodeLister(nodes), Controller: frame.New("test", 1, slog.New(slog.DiscardHandler), nil),
	}
	look := func() {
		t.Helper()
		if err := p.sync(); err != nil {
			t.Fatal(err)
		}
	}
	add := func(n *corev1.Node) {
		t.Helper()
		if err := nodes.Add(n); err != nil {
			t.Fatal(err)
		}
	}
	add(object("b", "10.0.0.2", "fd00::2"))
	add(object("a", "10.0.0.1"))
	look() // another runtime
	if _, err := os.Stat(filepath.Dir(path)); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("a directory was made: %v", err)
	}
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	add(object("c", "fd00::3"))
	add(object("has-no-address"))
	look()
	check := func(peers ...node) {
		t.Helper()
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var got file
		if err := json.Unmarshal(data, &got); err != nil {
			t.Fatal(err)
		}
		want := file{1, "b", "10.0.0.2:10266", "/ca.crt", "/client.pem", "/serving.pem", peers}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%+v instead of %+v", got, want)
		}
	}
	check(node{"a", "10.0.0.1:10266"}, node{"c", "[fd00::3]:10266"})
	for _, name := range []string{"a", "c"} {
		if err := nodes.Delete(object(name)); err != nil {
			t.Fatal(err)
		}
	}
	look()
	check([]node{}...)
}

// Nodes that join at the same time are written together.
func TestNodesAreLookedAtTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state := t.TempDir()
		path := filepath.Join(state, "image-peers", "nodes.json")
		if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		kube := fake.NewClientset(object("b", "10.0.0.2"), object("a", "10.0.0.1"))
		set := &client.Set{Kube: kube, Informers: client.NewInformers(kube)}
		p := New(set, Options{NodeName: "b", Socket: "unix://" + state + "/coracle.sock"})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = p.Run(ctx) })
		set.Informers.Start(ctx.Done())
		defer func() {
			cancel()
			running.Wait()
			set.Informers.Shutdown()
		}()
		has := func(want int) {
			t.Helper()
			synctest.Wait()
			data, err := os.ReadFile(path)
			var got file
			if err = errors.Join(err, json.Unmarshal(data, &got)); err != nil || len(got.Peers) != want {
				t.Errorf("%d peers, want %d: %v", len(got.Peers), want, err)
			}
		}
		time.Sleep(2 * pause)
		has(1)
		for _, name := range []string{"c", "d"} {
			if _, err := kube.CoreV1().Nodes().Create(ctx, object(name, "10.0.0.3"), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			has(1)
			time.Sleep(pause / 2)
		}
		time.Sleep(time.Millisecond)
		has(3)
	})
}

// A cluster of one node has nothing to tell.
func TestOneNode(t *testing.T) {
	state := t.TempDir()
	if err := os.Mkdir(filepath.Join(state, "image-peers"), 0o700); err != nil {
		t.Fatal(err)
	}
	nodes := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	if err := nodes.Add(object("b", "10.0.0.2")); err != nil {
		t.Fatal(err)
	}
	p := &Peers{Options: Options{NodeName: "b", Socket: "unix://" + state + "/coracle.sock"}, nodes: corelisters.NewNodeLister(nodes)}
	if err := p.sync(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(state, "image-peers", "nodes.json")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file was written: %v", err)
	}
}
