select pcfarm.put_hand_outs_right()
