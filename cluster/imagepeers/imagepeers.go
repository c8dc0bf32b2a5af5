// Package imagepeers tells coracled which other nodes it fetches layers of images from and passes
// them on to. It writes a file next to the CRI socket, in a directory that a coracled with the
// setting share_between_nodes makes; other runtimes have none, and are told nothing. The file
// outlives restarts of both processes. docs/images.md describes it.
package imagepeers

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
	"github.com/coracle-project/coracle/cluster/nodeaddr"
	"github.com/coracle-project/coracle/cluster/pki"
)

// Port is the TCP port at which nodes ask each other for layers.
const Port = 10266

// Options say which node this is, and by which certificates other nodes know it.
type Options struct {
	NodeName string
	// Socket is the URL of the CRI socket, unix://PATH.
	Socket string
	// CA is the file of the cluster's authority, Client and Serving those of the node's pairs.
	CA, Client, Serving string
}

// Peers keeps the file.
type Peers struct {
	Options
	*frame.Controller
	nodes corelisters.NodeLister
}

// file is what coracled reads.
type file struct {
	Version int    `json:"version"`
	Self    string `json:"self"`
	Listen  string `json:"listen"`
	CA      string `json:"ca"`
	Client  string `json:"client"`
	Serving string `json:"serving"`
	Peers   []node `json:"peers"`
}

type node struct {
	Name    string `json:"name"`
	Address string `json:"address"`
}

const (
	key = "nodes" // the only one: all nodes are in one file
	// pause is between two looks at all nodes: many may join at once, and each changes now and then.
	pause = 200 * time.Millisecond
	// again is when a runtime is looked for that does not share layers now.
	again = time.Minute
	// maxPeers is how many nodes coracled takes.
	maxPeers = 10_000
)

// New asks for an informer and makes no call.
func New(set *client.Set, o Options) *Peers {
	nodes := set.Informers.Core().V1().Nodes()
	p := &Peers{Options: o, nodes: nodes.Lister()}
	p.Controller = frame.New("image peers", 1, set.Logger(), func(context.Context, string) error { return p.sync() })
	p.Watch(nodes.Informer(), func(any) []string {
		p.AddAfter(key, pause)
		return nil
	})
	return p
}

// Run keeps the file until ctx ends. It stays, so that a restart interrupts nothing.
func (p *Peers) Run(ctx context.Context) error {
	p.Controller.Run(ctx)
	return nil
}

func (p *Peers) sync() error {
	dir := filepath.Join(filepath.Dir(strings.TrimPrefix(p.Socket, "unix://")), "image-peers")
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		p.AddAfter(key, again)
		return nil
	}
	objects, err := p.nodes.List(labels.Everything())
	if err != nil {
		return err
	}
	f := file{Version: 1, Self: p.NodeName, CA: p.CA, Client: p.Client, Serving: p.Serving, Peers: []node{}}
	for _, object := range objects {
		address := addressOf(object)
		switch {
		case address == "":
		case object.Name == p.NodeName:
			f.Listen = address
		default:
			f.Peers = append(f.Peers, node{object.Name, address})
		}
	}
	slices.SortFunc(f.Peers, func(a, b node) int { return cmp.Compare(a.Name, b.Name) })
	f.Peers = f.Peers[:min(len(f.Peers), maxPeers)]
	path := filepath.Join(dir, "nodes.json")
	if _, err := os.Stat(path); f.Listen == "" || len(f.Peers) == 0 && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	data, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return err
	}
	return pki.Replace(path, append(data, '\n'), 0o600)
}

// addressOf is where a node listens; "" if it has not reported an address by which others reach it.
func addressOf(n *corev1.Node) string {
	all, _ := nodeaddr.InternalIPs(n)
	if len(all) == 0 {
		return ""
	}
	return netip.AddrPortFrom(all[0], Port).String()
}
