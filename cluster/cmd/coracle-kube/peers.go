package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/coracle-project/coracle/cluster/apiserver/etcd"
	"github.com/coracle-project/coracle/cluster/health"
	"github.com/coracle-project/coracle/cluster/pki"
)

// errAgain ends a process that is to start again. The errors below say why.
var (
	errAgain = errors.New("the process starts again")
	errPeers = fmt.Errorf("%w: another control-plane node joins", errAgain)
	errAlone = fmt.Errorf("%w: no other control-plane node is left", errAgain)
)

// settle is how long other API servers may need to notice that a namespace is being deleted.
const settle = 5 * time.Second

// findPeers looks whether there are other control-plane nodes. If there are none, stop is how the
// first of them has this process start again.
func (o *apiOptions) findPeers(node string, board *health.Board, stop context.CancelCauseFunc) error {
	if len(o.etcdServers) > 0 {
		o.several = true
		return nil
	}
	peers, err := etcd.ReadPeers(o.root)
	if err != nil {
		return err
	}
	if peers != nil {
		if at := o.memberAt(); at != "" {
			if err := peers.Move(o.root, at); err != nil {
				return err
			}
		}
		o.several, o.membersHealth = true, board.Add("etcd members")
		o.leavePeers = func() error {
			if err := os.Remove(etcd.PeersFile(o.root)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			stop(errAlone)
			return nil
		}
		return nil
	}
	o.takePeers = func() error {
		at, err := o.peerURL()
		if err != nil {
			return err
		}
		if err := (etcd.Peers{Name: node, URL: at}).Write(o.root); err != nil {
			return err
		}
		stop(errPeers)
		return nil
	}
	return nil
}

// memberAt is where other members of etcd reach this one's, "" if they do not.
func (o *apiOptions) memberAt() string {
	own, err := url.Parse(o.settings().URL())
	if err != nil || own.Hostname() == "" {
		return ""
	}
	return "https://" + net.JoinHostPort(own.Hostname(), strconv.Itoa(o.peerPort))
}

// peerURL is memberAt of a machine that becomes a member, whose port must be free.
func (o *apiOptions) peerURL() (string, error) {
	at := o.memberAt()
	if at == "" {
		return "", errors.New("the API server listens for this machine only: give 'coracle up' a --bind-address that other machines reach")
	}
	l, err := net.Listen("tcp", strings.TrimPrefix(at, "https://"))
	if err != nil {
		return "", fmt.Errorf("the port for etcd's other members is not free: %w", err)
	}
	return at, l.Close()
}

// peers are the other members of etcd, nil if there are none, or if etcd is outside.
func (o *apiOptions) peers() (*etcd.Peers, error) {
	if len(o.etcdServers) > 0 {
		return nil, nil
	}
	return etcd.ReadPeers(o.root)
}

// checkShared refuses to make keys again that this machine has in common with other control-plane
// nodes, unless it is forced to go on without them.
func (o *apiOptions) checkShared(peers *etcd.Peers) error {
	if peers == nil || peers.Force {
		return nil
	}
	return pki.CheckShared(filepath.Join(o.root, "pki"))
}

// peerCredentials makes what this machine's member of etcd shows to the others. It removes that if
// there are no others any more: it would expire, as no one renews it.
func (o *apiOptions) peerCredentials(bundle *pki.Bundle, peers *etcd.Peers) error {
	if len(o.etcdServers) > 0 {
		return nil
	}
	if peers == nil {
		if o.several { // one that was forced to go on alone has its port for peers until the next start
			return nil
		}
		if err := os.Remove(bundle.EtcdFiles().Pair); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	own, err := url.Parse(peers.URL)
	if err != nil {
		return err
	}
	_, err = bundle.EtcdPeer([]string{own.Hostname()})
	return err
}

func (o *apiOptions) namespaceSettle() time.Duration {
	if o.several {
		return settle
	}
	return 0
}
