package main

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A program that ends is noticed though somebody else listens where it should, and never answers.
func TestAwaitIsNotHeldUp(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		cmd := exec.Command("true")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		err := await(ctx, "it", log, cmd, func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		})
		if err == nil || !strings.Contains(err.Error(), "it ended as soon as it had been started") || time.Since(began) > time.Minute {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}
