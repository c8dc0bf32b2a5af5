package testkit

import (
	"errors"
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRefusingAddr(t *testing.T) {
	addr := RefusingAddr(t)
	if _, err := net.Dial("tcp", addr); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("dial: %v", err)
	}
	if _, err := net.Listen("tcp", addr); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("listen: %v", err)
	}
}
