package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/coracle-project/coracle/cmd/coracle/kubesocket"
)

// kubeSocket is where the cluster process answers root.
func (p place) kubeSocket() string { return filepath.Join(p.kubeState(), "kube", "pprof.sock") }

// partsHealth asks the cluster process how its parts are.
func partsHealth(ctx context.Context, p place) ([]health, error) {
	return healthAt(ctx, p.kubeSocket())
}

// healthAt asks a program of the cluster at its socket how its parts are.
func healthAt(ctx context.Context, socket string) ([]health, error) {
	parts, err := kubesocket.Parts(ctx, socket)
	if err != nil {
		return nil, err
	}
	var all []health
	for _, part := range parts {
		h := health{
			Component: part.Component, Healthy: part.Healthy, Message: part.Message, Since: part.Since, LastError: part.LastError,
			LastErrorAt: part.LastErrorAt, Warnings: part.Warnings,
		}
		all = append(all, h)
	}
	return all, nil
}

// tellParts prints what of the cluster process does not work: up has done its own work then.
func tellParts(ctx context.Context, p place, s *steps) {
	ctx, cancel := context.WithTimeout(ctx, partsPatience)
	defer cancel()
	parts, err := kubesocket.AwaitParts(ctx, p.kubeSocket())
	if err != nil {
		s.waits("how the parts of the cluster are is not known: " + err.Error())
		return
	}
	for _, part := range parts {
		if !part.Healthy {
			s.waits(part.Component + ": " + part.Message)
		}
	}
}

// partsPatience is how long up waits until the parts of the cluster process have said how they are.
const partsPatience = 30 * time.Second

// told is the message of a part, since when it is true, and what went wrong before.
func (h health) told() string {
	told := h.Message
	if !h.Since.IsZero() {
		told += fmt.Sprintf(" (since %s)", h.Since.Local().Format(time.DateTime))
	}
	if len(h.Warnings) > 0 {
		told += "; warning: " + strings.Join(h.Warnings, "; ")
	}
	if h.LastError != "" && h.LastError != h.Message {
		told += fmt.Sprintf("; last error, %s: %s", h.LastErrorAt.Local().Format(time.DateTime), h.LastError)
	}
	return told
}
