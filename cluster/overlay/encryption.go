package overlay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/coracle-project/coracle/cluster/overlay/paths"
	"github.com/coracle-project/coracle/cluster/overlay/wireguard"
)

// KeyAnnotation is the annotation of a Node with its public key of WireGuard. Apart from
// administrators, only the node itself can write it (NodeRestriction).
const KeyAnnotation = "coracle.dev/wireguard"

// EncryptedPort is that of WireGuard (UDP), on all nodes. Its usual one, 51820, is left to tunnels
// of administrators.
const EncryptedPort = 51871

// Encryption has everything between pods of different nodes encrypted.
type Encryption struct {
	private, public wireguard.Key
	node            kubernetes.Interface
}

// NewEncryption reads this node's key, which it makes if there is none. node acts as this node. It
// fails where the kernel has no WireGuard.
func NewEncryption(file string, node kubernetes.Interface) (*Encryption, error) {
	k, err := wireguard.Open()
	if err != nil {
		return nil, err
	}
	k.Close()
	e := &Encryption{node: node}
	if e.private, err = wireguard.Private(file); err != nil {
		return nil, fmt.Errorf("the node's key of WireGuard: %w", err)
	}
	e.public, err = e.private.Public()
	return e, err
}

// publish annotates this node's object with its key. Without encryption it does nothing.
func (v *Overlay) publish(ctx context.Context, objects []*corev1.Node) error {
	if v.Encryption == nil {
		return nil
	}
	key := v.Encryption.public.String()
	i := slices.IndexFunc(objects, func(o *corev1.Node) bool { return o.Name == v.NodeName })
	if i < 0 || objects[i].Annotations[KeyAnnotation] == key {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{KeyAnnotation: key}}})
	if err != nil {
		return err
	}
	_, err = v.Encryption.node.CoreV1().Nodes().Patch(ctx, v.NodeName, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) { // its registration is an event
		return fmt.Errorf("publish this node's key of WireGuard: %w", err)
	}
	return nil
}

// keyOf is the key of a node, zero if it has none, or nothing is encrypted.
func (v *Overlay) keyOf(object *corev1.Node) (key wireguard.Key, err error) {
	text := object.Annotations[KeyAnnotation]
	switch known := v.accepted[object.Name].Key; {
	case v.Encryption == nil:
		return key, nil
	case object.Name == v.NodeName:
		return v.Encryption.public, nil
	case text == "":
		return key, nil
	case known != (wireguard.Key{}) && text == known.String(): // which costs less than to look at it again
		return known, nil
	}
	if key, err = wireguard.ParsePublic(text); err != nil {
		return key, fmt.Errorf("its annotation %s: %w", KeyAnnotation, err)
	}
	return key, nil
}

// encrypts reports whether this node takes and sends encrypted packets only.
func (n Node) encrypts() bool { return n.Key != wireguard.Key{} }

// checkKey says what is wrong with a node's key. With one key for two nodes, packets for one would
// go to the other.
func (c *claims) checkKey(n Node) error {
	if c.keys == nil {
		return nil
	}
	if !n.encrypts() {
		return errors.New("it has published no key of WireGuard, without which nothing is sent to its pods: " +
			"it starts, or its version or settings are others")
	}
	if other, ok := c.keys[n.Key]; ok {
		return fmt.Errorf("its key of WireGuard is that of node %s: delete the file of the key on the machine that copied it", other)
	}
	return nil
}

// kernel is what package paths has to know, nil without encryption.
func (e *Encryption) kernel() *paths.Encryption {
	if e == nil {
		return nil
	}
	return &paths.Encryption{Private: e.private, Port: EncryptedPort}
}
