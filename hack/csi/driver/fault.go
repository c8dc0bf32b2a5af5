package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// fault is what happens to a call, in the file faults/METHOD@ANY. The call that reaches it moves
// the file to reached/: so each file is one fault, also if the driver dies of it, and N files are N
// faults. With keep the file stays, and all calls reach it.
type fault struct {
	When   string     `json:"when"`   // before or after the call has done its work
	Do     string     `json:"do"`     // hang (until the file in reached/, or in faults/ with keep, is removed), die, or error
	Code   codes.Code `json:"code"`   // of error
	Volume string     `json:"volume"` // of this volume only; empty: any
	Keep   bool       `json:"keep"`
}

// hangLook is between two looks of a call that hangs.
const hangLook = 20 * time.Millisecond

type faults struct{ dir string }

// apply takes the faults of a call. It returns an error if one says so, and does not return if the
// driver dies.
func (f faults) apply(method, when, volume string, reached func(fault)) error {
	files, err := filepath.Glob(filepath.Join(f.dir, "faults", method+"@*"))
	if err != nil {
		return err
	}
	for _, file := range files {
		one, err := readFault(file)
		if err != nil || one.When != when || one.Volume != "" && one.Volume != volume {
			continue // also if another call was faster
		}
		if !one.Keep {
			at := filepath.Join(f.dir, "reached", filepath.Base(file))
			if os.Rename(file, at) != nil { // another call was faster
				continue
			}
			file = at
		}
		reached(one)
		switch one.Do {
		case "hang":
			for exists(file) {
				time.Sleep(hangLook)
			}
		case "die": // not by a signal: as process 1 of a container it would not die of its own
			os.Exit(137)
		case "error":
			return status.Errorf(one.Code, "%s fails as %s says", method, filepath.Base(file))
		}
	}
	return nil
}

func readFault(file string) (fault, error) {
	var one fault
	data, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(data, &one)
	}
	return one, err
}

func exists(file string) bool {
	_, err := os.Lstat(file)
	return !errors.Is(err, os.ErrNotExist)
}

// journal has a line for each call, and for what became of it.
type journal struct{ file *os.File }

type entry struct {
	Phase   string          `json:"phase"` // call, fault or end
	Method  string          `json:"method"`
	Volume  string          `json:"volume,omitempty"`
	Request json.RawMessage `json:"request,omitempty"` // of call; of secrets the names
	Secrets []string        `json:"secrets,omitempty"`
	Fault   *fault          `json:"fault,omitempty"` // of fault
	Code    string          `json:"code,omitempty"`  // of end
	Error   string          `json:"error,omitempty"`
}

func (j journal) write(e entry) {
	line, err := json.Marshal(e)
	if err == nil {
		_, err = j.file.Write(append(line, '\n')) // in one: other processes write, too
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "csi-driver: calls:", err)
	}
}

// interceptor is between gRPC and the services.
type interceptor struct {
	journal journal
	faults  faults
}

func (i interceptor) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	method, volume := path.Base(info.FullMethod), subject(req)
	call := entry{Phase: "call", Method: method, Volume: volume}
	call.Request, call.Secrets = loggable(req)
	i.journal.write(call)
	reached := func(f fault) { i.journal.write(entry{Phase: "fault", Method: method, Volume: volume, Fault: &f}) }
	err := i.faults.apply(method, "before", volume, reached)
	var answer any
	if err == nil {
		answer, err = handle(ctx, req)
	}
	if err == nil {
		err = i.faults.apply(method, "after", volume, reached)
	}
	end := entry{Phase: "end", Method: method, Volume: volume, Code: status.Code(err).String()}
	if err != nil {
		end.Error = err.Error()
	}
	i.journal.write(end)
	if err != nil {
		return nil, err
	}
	return answer, nil
}

// subject is the volume or snapshot that a request is about.
func subject(req any) string {
	switch r := req.(type) {
	case interface{ GetVolumeId() string }:
		return r.GetVolumeId()
	case interface{ GetSnapshotId() string }:
		return r.GetSnapshotId()
	case interface{ GetName() string }:
		return makeID(r.GetName())
	}
	return ""
}

// loggable is a request without its secrets, and their names.
func loggable(req any) (json.RawMessage, []string) {
	message, ok := req.(proto.Message)
	if !ok {
		return nil, nil
	}
	text, err := protojson.Marshal(message)
	fields := map[string]json.RawMessage{}
	if err != nil || json.Unmarshal(text, &fields) != nil {
		return nil, nil
	}
	var names []string
	secrets := map[string]string{}
	if json.Unmarshal(fields["secrets"], &secrets) == nil {
		for name := range secrets {
			names = append(names, strings.Clone(name))
		}
	}
	delete(fields, "secrets")
	text, err = json.Marshal(fields)
	if err != nil {
		return nil, names
	}
	return text, names
}
