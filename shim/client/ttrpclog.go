package client

import (
	"io"

	"github.com/containerd/log"
	"github.com/sirupsen/logrus"
)

// ttrpc logs, as an error and past our own logger, each answer that comes after its
// call's context has ended: nothing but a timed-out exec.
func init() {
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	log.L = logrus.NewEntry(quiet)
}
