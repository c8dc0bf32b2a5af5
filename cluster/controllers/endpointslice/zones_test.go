package endpointslice

import (
	"context"
	"log/slog"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/endpointslice/topologycache"

	"github.com/coracle-project/coracle/cluster/controllers/frame"
)

// counted counts how often all nodes are listed.
type counted struct {
	corelisters.NodeLister
	lists int
}

func (c *counted) List(labels.Selector) ([]*corev1.Node, error) { c.lists++; return nil, nil }

// A thousand nodes that come are one question to all of them, not a thousand.
func TestNodesThatComeInNumbersAreListedOnce(t *testing.T) {
	nodes := &counted{}
	c := &controller{nodes: nodes, frame: frame.New("test", 1, slog.New(slog.DiscardHandler), nil), topology: topologycache.NewTopologyCache()}
	for range 1000 {
		if keys := c.nodeChanged(nil, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}); keys != nil {
			t.Fatalf("%v at once", keys)
		}
	}
	for range 3 {
		if err := c.sync(context.Background(), topology); err != nil {
			t.Fatal(err)
		}
	}
	if nodes.lists != 1 {
		t.Errorf("nodes were listed %d times, want once", nodes.lists)
	}
	heartbeat := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", ResourceVersion: "2"}}
	c.nodeChanged(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, heartbeat)
	if err := c.sync(context.Background(), topology); err != nil || nodes.lists != 1 {
		t.Errorf("a heartbeat has nodes listed (%v)", err)
	}
}
