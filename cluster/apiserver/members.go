package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/coracle-project/coracle/cluster/apiserver/etcd"
	"github.com/coracle-project/coracle/cluster/pki"
)

// MembersPath is where control-plane nodes are added to etcd and removed from it. It is no
// resource, so only system:masters reach it, unless RBAC says otherwise: a member has all data.
//
//	GET    /coracle/members        the members
//	POST   /coracle/members        a Joiner, answered with the etcd.Peers that it starts with
//	DELETE /coracle/members/NAME   also if its machine is gone; the URL of one that never started
//
// The first POST to a server without peers is answered with 503: it starts again with a port for
// them, and the client asks again. With etcd elsewhere there are no members: all is answered with
// 404, a POST only if the Joiner agrees with this control-plane node.
const MembersPath = "/coracle/members"

const (
	// memberLimit bounds a change of the membership. etcd itself refuses one for some seconds after
	// the last.
	memberLimit = 20 * time.Second
	// longestJoiner bounds what is read, in bytes.
	longestJoiner = 64 << 10
)

// Joiner is a machine that is to be a member: the name of its node, and where the others reach it.
type Joiner struct {
	Name string `json:"name"`
	URL  string `json:"url"`
	// TokenKey is the pki.TokenKeyID of the key of service account tokens that it has got.
	TokenKey string `json:"tokenKey"`
	// Files are the digests of its SharedFiles.
	Files map[string]string `json:"files"`
}

// installMembers serves MembersPath.
func (b *build) installMembers(server *genericapiserver.GenericAPIServer) {
	o := b.options
	m := members{b.store.members, o.PKI.ServiceAccountKey, o.SharedFiles, o.TakePeers, o.LeavePeers, o.Log}
	server.Handler.NonGoRestfulMux.Handle(MembersPath, m)
	server.Handler.NonGoRestfulMux.HandlePrefix(MembersPath+"/", m)
}

type members struct {
	etcd *etcd.Server // nil if it is elsewhere
	// tokenKey is the file with the key of service account tokens.
	tokenKey              string
	files                 SharedFiles
	takePeers, leavePeers func() error
	log                   *slog.Logger
}

// ServeHTTP implements http.Handler.
func (m members) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), memberLimit)
	defer cancel()
	name := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, MembersPath), "/")
	if plain, err := url.PathUnescape(name); err == nil { // clients escape the URL of a member twice
		name = plain
	}
	var answer any
	var err error
	switch {
	case r.Method == http.MethodPost && name == "":
		answer, err = m.add(ctx, w, r)
	case m.etcd == nil:
		err = noMembers()
	case r.Method == http.MethodGet && name == "":
		answer = m.etcd.Members()
	case r.Method == http.MethodDelete && name != "":
		answer, err = m.remove(ctx, name)
	default:
		err = &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusMethodNotAllowed, Reason: metav1.StatusReasonMethodNotAllowed,
			Message: r.Method + " is not a verb of " + r.URL.Path,
		}}
	}
	if err != nil {
		refuse(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // what is wrong with the connection is the client's to notice
}

// remove returns the members that are left. The last one starts again: its clock is slow then.
func (m members) remove(ctx context.Context, name string) (any, error) {
	if err := m.etcd.Remove(ctx, name); err != nil {
		return nil, err
	}
	left := m.etcd.Members()
	if m.etcd.Last() && m.leavePeers != nil {
		if err := m.leavePeers(); err != nil {
			m.log.Warn("etcd keeps its port for other members", "err", err)
		}
	}
	return left, nil
}

func (m members) add(ctx context.Context, w http.ResponseWriter, r *http.Request) (any, error) {
	var j Joiner
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, longestJoiner)).Decode(&j); err != nil || j.Name == "" || j.URL == "" {
		return nil, apierrors.NewBadRequest("want the name and the URL of a member")
	}
	if err := m.sameTokenKey(j); err != nil {
		return nil, err
	}
	if err := m.files.agree(j); err != nil {
		return nil, err
	}
	if m.etcd == nil {
		return nil, noMembers()
	}
	peers, err := m.etcd.Add(ctx, j.Name, j.URL)
	if !errors.Is(err, etcd.ErrAlone) {
		return peers, err
	}
	if m.takePeers == nil {
		return nil, err
	}
	if err := m.takePeers(); err != nil {
		return nil, err
	}
	return nil, apierrors.NewServiceUnavailable("the API server starts again with a port for other members")
}

func noMembers() error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound,
		Message: "the cluster has no members of etcd: it uses the servers of --etcd-servers",
	}}
}

// sameTokenKey refuses a machine whose key of service account tokens was replaced after the machine
// got it: the other API servers would sign with a key that it does not know.
func (m members) sameTokenKey(j Joiner) error {
	data, err := os.ReadFile(m.tokenKey)
	if err != nil {
		return err
	}
	own, err := pki.TokenKeyID(data)
	if err != nil || own == j.TokenKey {
		return err
	}
	return apierrors.NewBadRequest("the key of service account tokens is another one than " + j.Name +
		" has got: 'coracle token create --control-plane' makes another command")
}

// refuse answers with a Status, as the API's resources do.
func refuse(w http.ResponseWriter, err error) {
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) {
		code, reason := int32(http.StatusInternalServerError), metav1.StatusReasonInternalError
		switch {
		case errors.Is(err, etcd.ErrMemberTaken), errors.Is(err, etcd.ErrLastMember):
			code, reason = http.StatusConflict, metav1.StatusReasonConflict
		case errors.Is(err, etcd.ErrNoMember):
			code, reason = http.StatusNotFound, metav1.StatusReasonNotFound
		}
		status = &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: code, Reason: reason, Message: err.Error(),
		}}
	}
	body := status.Status()
	body.APIVersion, body.Kind = "v1", "Status"
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(body.Code))
	_ = json.NewEncoder(w).Encode(body)
}
