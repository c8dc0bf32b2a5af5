package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/coracle-project/coracle/cluster/controllers"
	"github.com/coracle-project/coracle/cluster/controllers/certificates"
	"github.com/coracle-project/coracle/cluster/controllers/nodelifecycle"
)

const (
	// leastGrace is twice the time between two renewals of a kubelet's lease.
	leastGrace = 20 * time.Second
	// leastSigned leaves a node time for the next certificate. It asks for that after 70 to 90 % of
	// the life of the last, which began 5 minutes before it was signed.
	leastSigned = 2 * time.Minute
)

// lifetimes are the flags for how long controllers let things be good. Names and defaults are
// upstream's.
type lifetimes struct {
	monitorGrace, signed time.Duration
}

func (l *lifetimes) define(f *pflag.FlagSet) {
	f.DurationVar(&l.monitorGrace, "node-monitor-grace-period", nodelifecycle.DefaultGrace,
		"how long a node may be silent before it counts as unreachable")
	f.DurationVar(&l.signed, "cluster-signing-duration", certificates.DefaultLifetime,
		"how long the certificates of nodes, and others that the cluster signs, are valid at most")
}

// check says what is wrong with the flags, if anything.
func (l *lifetimes) check() error {
	var errs []error
	if l.monitorGrace < leastGrace {
		errs = append(errs, fmt.Errorf("--node-monitor-grace-period %s is less than %s: a node tells that it lives every 10 seconds", l.monitorGrace,
			leastGrace))
	}
	if l.signed < leastSigned {
		errs = append(errs, fmt.Errorf("--cluster-signing-duration %s is less than %s, which nodes need to renew their certificates", l.signed, leastSigned))
	}
	return errors.Join(errs...)
}

func (l *lifetimes) set(o *controllers.Options) {
	o.NodeMonitorGrace, o.CertificateLifetime = l.monitorGrace, l.signed
}
