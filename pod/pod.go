// Package pod holds the lives of pods and containers on this node: their records,
// state machines, intents, recovery, stats. It knows no protobuf and no gRPC: cri/
// translates.
//
// # State machines
//
//	pod        (intent) ─Run─► ready ─Stop, or its init dies─► notready ─Remove─► gone
//	container  (intent) ─Create─► created ─Start─► running ─exit, Stop─► exited ─Remove─► gone
//
// Every operation writes its intent into the record, acts, and writes the result;
// Start (of the Manager) is recovery: it reads all records, asks shims and kernel what
// is really there, and rolls each operation forward or back.
//
// # Parts
//
// The Manager only puts parts together, each a package below this one: sandbox leads pods through
// their lives, container leads containers, recovery takes over what an earlier daemon left.
// checkpoint, stats and streams do what their names say. All share two tables of entries
// (pod/state, pod/table), whose turns let one operation at a time work on an object.
//
// The pod's init, which holds a PID namespace that containers share, is started for the
// first container that wants it.
//
// # On disk (under the state directory, a tmpfs)
//
//	pods/<id>/pod.json                   record: {"version":1,"value":{…}}, see state.PodRecord
//	pods/<id>/files                      tmpfs of 64 MiB: what containers can write to
//	pods/<id>/files/{resolv.conf,hosts,hostname}
//	pods/<id>/files/shm                  the containers' /dev/shm
//	pods/<id>/init/                      bundle of the pod's init, if it has one
//	ns/<pod id>/{net,ipc,uts}            pinned namespaces (internal/nspin)
//	containers/<id>/container.json       record, see state.ContainerRecord
//	containers/<id>/config.json          bundle: OCI spec
//	containers/<id>/rootfs               bundle: mount point of the snapshot
//	containers/<id>/volumes/<n>          mount point of the image volume that is mount n
//
// A record's "phase" is the intent or the result. Nothing is synced: the next boot
// finds an empty directory, and removes everything elsewhere that has no record. An object with an
// unreadable record is unmanaged: see Unmanaged.
//
// # Volumes of images
//
// A VOLUME of an image is a directory in the container's writable layer (made if the
// image lacks it), as with CRI-O: no anonymous volume is made, as containerd does. So with
// a read-only root it is read-only too; mount something there to write.
//
// # Concurrency
//
// Operations on one pod or container run one at a time; a second call of the same
// operation for the same object joins the one under way and returns its result.
// An operation goes on when its caller goes away. Status and List read an immutable
// value from memory and never wait.
//
// What is slow to free and seen by no one (links, addresses, namespaces, shims) is freed
// in the background after Stop and Remove have returned; the record says that it is due.
package pod

import "github.com/coracle-project/coracle/shim/client"

// Streams are the caller's ends of an exec, attach or port forward.
type Streams = client.Streams

// Size is a terminal's size.
type Size = client.Size
