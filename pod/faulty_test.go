package pod

import (
	"context"
	"sync/atomic"
)

// failing is a fault for world.before.
func failing(err error) func(context.Context) error {
	return func(context.Context) error { return err }
}

// failTimes fails the first n calls, and counts all of them in tries.
func failTimes(n int32, err error, tries chan<- struct{}) func(context.Context) error {
	var calls atomic.Int32
	return func(context.Context) error {
		tries <- struct{}{}
		if calls.Add(1) <= n {
			return err
		}
		return nil
	}
}

// hanging waits until release is closed or the call's context ends; entered gets a token
// for each call that waits.
func hanging(entered chan<- struct{}, release <-chan struct{}) func(context.Context) error {
	return func(ctx context.Context) error {
		entered <- struct{}{}
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
