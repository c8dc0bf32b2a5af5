package node

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// A node starts also where no name server answers.
func TestAddressWithoutNameServer(t *testing.T) {
	before := net.DefaultResolver
	defer func() { net.DefaultResolver = before }()
	synctest.Test(t, func(t *testing.T) {
		asked := false
		net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			asked = true
			<-ctx.Done()
			return nil, ctx.Err()
		}}
		began := time.Now()
		_, err := Address("node.example") // an error if this machine has no default route
		if took := time.Since(began); took != lookup {
			t.Errorf("it takes %v; %v", took, err)
		}
		synctest.Wait()
		if !asked {
			t.Error("no name server is asked")
		}
	})
}
