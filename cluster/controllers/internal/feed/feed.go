// Package feed gives controllers events in the two ways that frame.Watch does not: from an informer
// that no other component needs and that therefore lives and dies with the controller, and as
// pairs of what an object was and what it is, for those who act on the difference.
package feed

import (
	"context"

	"k8s.io/client-go/tools/cache"

	"github.com/coracle-project/coracle/cluster/controllers/frame"
)

// Own runs informer while f runs, and feeds f with what keys says of each object that it sees come,
// change or go. Unlike with frame.Watch the work does not wait for the informer: a sync that takes
// an object's absence for a fact asks Synced first.
func Own(f *frame.Controller, informer cache.SharedIndexInformer, keys frame.Keys) {
	listen(f, informer, func(old, obj any) []string {
		if obj == nil {
			return keys(old)
		}
		return keys(obj)
	})
	f.Also(informer.RunWithContext)
}

// Synced waits until what exists has been delivered, and returns false if ctx ended first.
func Synced(ctx context.Context, delivered cache.DoneChecker) bool {
	select {
	case <-delivered.Done():
		return true
	default:
	}
	select {
	case <-delivered.Done():
		return true
	case <-ctx.Done():
		return false
	}
}

// Changes feeds f with what keys says of each change that informer sees: old is nil for an object
// that came, obj is nil for one that went. As with frame.Watch the work waits until informer has
// delivered what exists; that keys has seen it, too, is what the result says.
func Changes(f *frame.Controller, informer cache.SharedIndexInformer, keys func(old, obj any) []string) cache.DoneChecker {
	seen := listen(f, informer, keys)
	f.Watch(informer, func(any) []string { return nil })
	return seen
}

func listen(f *frame.Controller, informer cache.SharedIndexInformer, keys func(old, obj any) []string) cache.DoneChecker {
	add := func(old, obj any) {
		for _, key := range keys(old, obj) {
			f.Add(key)
		}
	}
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { add(nil, obj) },
		UpdateFunc: add,
		DeleteFunc: func(obj any) {
			if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = last.Obj
			}
			add(obj, nil)
		},
	})
	if err != nil { // the informer was stopped: the process is ending
		f.Log.Error("controller cannot watch", "controller", f.Name, "err", err)
		return never{}
	}
	return registration.HasSyncedChecker()
}

// never is of an informer that delivers nothing.
type never struct{}

func (never) Name() string { return "stopped informer" }

func (never) Done() <-chan struct{} { return nil }
