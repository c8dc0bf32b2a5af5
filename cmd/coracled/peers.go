package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/coracle-project/coracle/image/peer"
	"github.com/coracle-project/coracle/internal/privatedir"
)

// The cluster's agent says in this file, below the state directory, which other nodes there are. It
// looks for the directory next to the CRI socket.
const (
	peersDir  = "image-peers"
	peersFile = "nodes.json"
)

// peersAgain is when nodes that could not be taken over are tried again: the node may not have its
// address yet.
const peersAgain = 10 * time.Second

// peersCheck is when the nodes are taken over without a change, to listen again where that ended.
const peersCheck = time.Minute

// startPeers follows which other nodes layers are passed on to, unless they are not to be.
func (n *node) startPeers() error {
	dir := filepath.Join(n.config.State, peersDir)
	if !n.config.Image.ShareBetweenNodes {
		// The agent does not write the file where there is no directory. A killed agent may have
		// left other files. What stays is not read, and is no reason not to start.
		if err := os.RemoveAll(dir); err != nil {
			n.log.Warn("directory for the file of other nodes cannot be removed", "err", err)
		}
		return nil
	}
	if err := privatedir.Make(dir); err != nil {
		return err
	}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		n.log.Warn("layers are not shared between nodes: inotify is unavailable", "err", err)
		return nil
	}
	if err := w.Add(dir); err != nil {
		return errors.Join(fmt.Errorf("watch %s: %w", dir, err), w.Close())
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		n.followPeers(w, filepath.Join(dir, peersFile))
	}()
	n.closers = append(n.closers, func() error {
		err := w.Close()
		<-done
		return err
	})
	return nil
}

// followPeers takes the file over, now and at each change, until w is closed.
func (n *node) followPeers(w *fsnotify.Watcher, path string) {
	again := time.NewTimer(0)
	defer again.Stop()
	had, failure := 0, ""
	for {
		select {
		case _, ok := <-w.Events:
			if !ok {
				return
			}
		case _, ok := <-w.Errors: // events were lost
			if !ok {
				return
			}
		case <-again.C:
		}
		nodes, err := peer.Read(path)
		event := "file of other nodes cannot be read: those known so far stay"
		if err == nil {
			event = "layers are not shared with other nodes"
			if err = n.images.SetPeers(nodes); err != nil {
				had = 0
			}
		}
		if err != nil {
			if text := err.Error(); text != failure {
				n.log.Warn(event, "file", path, "err", err)
				failure = text
			}
			again.Reset(peersAgain)
			continue
		}
		failure = ""
		now := len(nodes.Peers)
		if now > 0 { // a node without others does not wake for them
			again.Reset(peersCheck)
		}
		if now != had {
			n.log.Info("layers are shared with other nodes", "nodes", now)
			had = now
		}
	}
}
