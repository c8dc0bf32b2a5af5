package base

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestAwaitExitsSaysWhoIsLeft(t *testing.T) {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	err = AwaitExits(ctx, []int{fd})
	if want := fmt.Sprintf("process %d, in state ", os.Getpid()); !errors.Is(err, context.DeadlineExceeded) ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("%v, want one with %q", err, want)
	}
}
