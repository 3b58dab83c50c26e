select pcfarm.forget_hand_outs($1)
